# SPDX-License-Identifier: Apache-2.0
"""How Hudi's writers write, commit, clean and archive.

Writers use optimistic concurrency under the writers' lock: one whose groups changed since it began takes its work
back. Where the plan wins, one whose groups a pending rewrite names does so too.
"""

from random import Random

from lake.errors import LakefoldError
from lake.model import OnConflict
from simulation.script import PARTITIONS
from simulation.shapes.timeline.cleans import run_clean, run_pending_cleans
from simulation.shapes.timeline.table import Instant, TimelineTable
from simulation.table import File, Slice
from simulation.writers import Aborted, Writes


class TimelineWrites(Writes):
    """One process that writes to one such table."""

    table: TimelineTable

    def do(self, what: str, random: Random) -> None:
        """See ``Writes``."""
        table = self.table
        if what == "tidy":
            self._tidy(table, random)
            return
        with table.locked(table.writers):
            self._roll_back_dead(table)
            instant = table.new_instant("replace" if what == "overwrite" else "commit", self.process)
            seen = dict(table.live())
            held = table.pending_groups()
        try:
            getattr(self, f"_{what}")(table, instant, random, self._free(table, seen, held))
        except (Aborted, LakefoldError):
            table.drop_instant(instant.time)
            raise

    def _free(self, table: TimelineTable, seen: dict[str, Slice], held: dict[str, Instant]) -> dict[str, Slice]:
        """What a writer may change: nothing that pending rewrites hold where those win, nothing that was damaged."""
        wins = table.setup.on_conflict is OnConflict.PLAN_WINS
        return {
            group: piece
            for group, piece in seen.items()
            if group not in table.damaged and not (wins and group in held)
        }  # fmt: skip

    def fill(self, random: Random) -> None:
        """See ``Writes``."""
        table = self.table
        for partition in PARTITIONS:
            instant = table.new_instant("commit", None)
            files = [
                table.write(partition, f"g{instant.time}-{number}", instant.time, self.new_rows(random))
                for number in range(random.randrange(1, 4))
            ]
            instant.outputs = tuple(files)
            rows = {key: value for file in files for key, value in file.rows.items()}
            table.complete(instant, table.index, rows)

    # The kinds of writes.

    def _insert(self, table: TimelineTable, instant: Instant, random: Random, free: dict[str, Slice]) -> None:
        rows = self.new_rows(random)
        self.world.before("write")
        file = table.write(random.choice(PARTITIONS), f"g{instant.time}", instant.time, rows)
        self._commit(table, instant, [file], {}, {**rows})

    def _upsert(self, table: TimelineTable, instant: Instant, random: Random, free: dict[str, Slice]) -> None:
        self._change(table, instant, random, free, lambda: random.randrange(1000))

    def _delete(self, table: TimelineTable, instant: Instant, random: Random, free: dict[str, Slice]) -> None:
        self._change(table, instant, random, free, lambda: None)

    def _change(self, table: TimelineTable, instant: Instant, random: Random, free: dict[str, Slice], value) -> None:  # type: ignore[no-untyped-def]
        files: list[File] = []
        changed: dict[int, int | None] = {}
        groups = random.sample(sorted(free), min(len(free), random.randrange(1, 3)))
        for group in groups:
            self.world.before("write")
            piece = free[group]
            rows = piece.rows()
            if not rows:
                continue
            keys = random.sample(sorted(rows), random.randrange(1, min(len(rows), 3) + 1))
            mine: dict[int, int | None] = {key: value() for key in keys}
            changed |= mine
            if table.setup.merge_on_read:
                files.append(table.write(piece.base.partition, group, instant.time, mine, log=True))
            else:
                whole = {key: new for key, new in (rows | mine).items() if new is not None}
                files.append(table.write(piece.base.partition, group, instant.time, whole))
        if not files:
            raise Aborted("nothing to change")
        self._commit(table, instant, files, {group: free[group] for group in groups}, changed)

    def _cluster(self, table: TimelineTable, instant: Instant, random: Random, free: dict[str, Slice]) -> None:
        """Inline clustering: a plan on the timeline, new files, a commit that replaces."""
        partition = random.choice(PARTITIONS)
        with table.locked(table.writers):
            held, live = table.pending_groups(), table.live()
            mine = {
                group: piece
                for group, piece in free.items()
                if piece.base.partition == partition and group not in held and live.get(group) is not None
                and live[group].names == piece.names
            }  # fmt: skip
            if len(mine) < 2:
                raise Aborted("nothing to cluster")
            instant.action = "clustering"
            instant.replaces = tuple((partition, group) for group in sorted(mine))
            instant.inputs = tuple(mine[group].names for _, group in instant.replaces)
            self.world.watch.published(table, instant)
        rows: dict[int, int] = {}
        for _, group in instant.replaces:
            self.world.before("write")
            rows |= mine[group].rows()
        file = table.write(partition, f"g{instant.time}", instant.time, rows)
        self._commit(table, instant, [file], mine, {})

    def _overwrite(self, table: TimelineTable, instant: Instant, random: Random, free: dict[str, Slice]) -> None:
        """``insert_overwrite`` or ``delete_partition``: a commit that replaces all that was seen of a partition."""
        partition, anew = random.choice(PARTITIONS), random.random() < 0.7
        seen = {group: piece for group, piece in table.live().items() if piece.base.partition == partition}
        if not seen or not seen.keys() <= free.keys():
            raise Aborted("nothing to replace, or not free to")
        changed: dict[int, int | None] = {key: None for piece in seen.values() for key in piece.rows()}
        files = []
        self.world.before("write")
        if anew:
            rows = self.new_rows(random)
            files.append(table.write(partition, f"g{instant.time}", instant.time, rows))
            changed |= rows
        self._commit(table, instant, files, seen, changed)

    def _savepoint(self, table: TimelineTable, instant: Instant, random: Random, free: dict[str, Slice]) -> None:
        """Keep what is live now from being cleaned and archived until it is released."""
        table.drop_instant(instant.time)
        with table.locked(table.writers):
            if not table.damaged and table.history:
                table.saved[table.history[-1][0].time] = frozenset(table.live_paths())

    def _commit(
        self,
        table: TimelineTable,
        instant: Instant,
        files: list[File],
        read: dict[str, Slice],
        changed: dict[int, int | None],
    ) -> None:
        self.world.before("write commit")
        with table.locked(table.writers):
            if table.timeline.get(instant.time) is not instant:
                raise Aborted("it was restored away")
            index = table.read_index()
            live, held = table.live(), table.pending_groups(without=instant.time)
            for group, piece in read.items():
                if group not in live or live[group].names != piece.names or group in table.damaged:
                    raise Aborted(f"{group} was changed meanwhile")
                if group in held and table.setup.on_conflict is OnConflict.PLAN_WINS:
                    raise Aborted(f"{group} is in pending {held[group].time}")
            instant.outputs = tuple(files)
            if instant.action == "replace":
                instant.replaces = tuple((piece.base.partition, group) for group, piece in read.items())
            table.complete(instant, index, changed)
            self.world.tell(f"{instant.action} {instant.time} of {table.name}: {', '.join(f.path for f in files)}")
        self.world.after("write commit")

    # What they tidy.

    def _roll_back_dead(self, table: TimelineTable) -> None:
        for instant in table.pending():
            if instant.plan_id is None and instant.action != "clean" and instant.owner and instant.owner.dead:
                table.drop_instant(instant.time)

    def _tidy(self, table: TimelineTable, random: Random) -> None:
        """Clean by ``KEEP_LATEST_COMMITS``, then archive, as a writer does inline after a commit."""
        with table.locked(table.writers):
            self._roll_back_dead(table)
            run_pending_cleans(self.world, table)
            if random.random() < 0.5:
                self._clean(table)
            self._archive(table)

    def restore(self, random: Random) -> None:
        """Go back to an earlier commit, for which everything after it must still be there."""
        table = self.table
        with table.locked(table.writers):
            last_clean = max((i.time for i in table.timeline.values() if i.action == "clean"), default="")
            first = max([last_clean, *table.archived])
            points = [i.time for i, _ in table.history if i.time >= first and i.action != "clean"]
            if len(points) < 2 or table.damaged:
                return
            time = random.choice(sorted(points)[-4:-1])
            self.world.tell(f"{table.name} is restored to {time}")
            undone = table.restore(time)
            self.world.watch.undone(table, undone, [group for i in undone for _, group in i.replaces])
            table.touch()

    def _clean(self, table: TimelineTable) -> None:
        done = sorted(i.time for i in table.timeline.values() if i.completed and i.action != "clean")
        pending = [i.time for i in table.pending() if i.action != "clean"]
        if len(done) <= self.world.setup.clean_commits:
            return
        earliest = min([done[-self.world.setup.clean_commits], *pending])
        replaced = {
            group
            for i in table.timeline.values()
            if i.completed and i.time < earliest
            for _, group in i.replaces
        }  # fmt: skip
        victims = [file.path for file in table.files.values() if file.group in replaced]
        newest: dict[str, str] = {}
        bases = [f for f in table.files.values() if not f.log and f.instant < earliest and self._is_done(table, f)]
        for file in bases:
            newest[file.group] = max(newest.get(file.group, ""), file.instant)
        victims += [
            file.path
            for file in table.files.values()
            if file.group not in replaced and file.group not in table.damaged
            and file.instant < newest.get(file.group, "") and self._is_done(table, file)
        ]  # fmt: skip
        victims = [path for path in victims if path not in table.saved_paths()]
        kept = min([earliest, *table.replaced_and_saved()])
        if victims:
            self.world.before("write clean")
            clean = table.new_instant("clean", None, victims=tuple(victims), earliest=kept)
            run_clean(self.world, table, clean)

    @staticmethod
    def _is_done(table: TimelineTable, file: File) -> bool:
        instant = table.find(file.instant)
        return instant is not None and instant.completed

    def _archive(self, table: TimelineTable) -> None:
        """Take the oldest completed instants off the timeline, but none from the first on that must stay.

        As Hudi's archiver: what is pending or saved stays, and so does the first replacement from where on the last
        clean said that replaced files may exist; a clean that names nothing says so of itself.
        """
        timeline = sorted(table.timeline.values(), key=lambda instant: instant.time)
        cleans = [i for i in timeline if i.action == "clean" and i.completed]
        bound = (cleans[-1].earliest or cleans[-1].time) if cleans else ""
        stays = [i.time for i in timeline if not i.completed]
        stays += [i.time for i in timeline if i.replaces and i.completed and i.time >= bound][:1]
        stays += [*table.saved, *table.replaced_and_saved()]
        commits = [i.time for i in timeline if i.completed and i.action != "clean"]
        stays += commits[-self.world.setup.keep_commits :][:1]
        first = min(stays, default="")
        gone = [i for i in timeline if i.completed and i.time < first]
        if cleans and cleans[-1] in gone:
            gone.remove(cleans[-1])
        if gone:
            self.world.tell(f"the writer archives {', '.join(i.time for i in gone)}")
            for instant in gone:
                table.archived[instant.time] = table.timeline.pop(instant.time)
            table.touch()
