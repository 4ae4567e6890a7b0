# SPDX-License-Identifier: Apache-2.0
"""Hudi's writers: they write, commit, clean and archive.

Writers use optimistic concurrency under the writers' lock: a writer undoes its work if its groups changed since it
began. If plans win, a writer whose groups a pending rewrite names does so too. No writer writes while the owner
restores.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random

from lake.errors import LakefoldError, Transient
from lake.model import OnConflict
from simulation.script import PARTITIONS
from simulation.shapes.timeline.cleans import is_of_today, policy_victims, run_clean, run_pending_cleans
from simulation.shapes.timeline.table import Instant, TimelineTable
from simulation.table import File, Slice
from simulation.writers import Aborted, Writes

_OF_WRITERS = ("commit", "replace", "clustering")


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
            self._refuse_while_restored(table)
            self._roll_back_dead(table)
            instant = self._announce(table, "replace" if what == "overwrite" else "commit")
            seen = dict(table.live())
            held = table.pending_groups()
        try:
            getattr(self, f"_{what}")(table, instant, random, self._free(table, seen, held))
        except (Aborted, LakefoldError):
            table.drop_instant(instant.time)
            raise

    def _free(self, table: TimelineTable, seen: dict[str, Slice], held: dict[str, Instant]) -> dict[str, Slice]:
        """Return the groups that a writer may change: none of a pending rewrite that wins, and no damaged ones."""
        wins = table.setup.on_conflict is OnConflict.PLAN_WINS
        return {
            group: piece for group, piece in seen.items() if group not in table.damaged and not (wins and group in held)
        }

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

    # Writes.

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
            self._refuse_while_restored(table)
            held, live = table.pending_groups(), table.live()
            mine = {
                group: piece
                for group, piece in free.items()
                if piece.base.partition == partition
                and group not in held
                and live.get(group) is not None
                and live[group].names == piece.names
            }
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
        """``insert_overwrite`` or ``delete_partition``: a commit that replaces all visible groups of a partition."""
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
        """Protect the live files from cleaning and archiving until the savepoint is released.

        The savepoint is on the timeline first; other processes may act in the seconds after that.
        """
        table.drop_instant(instant.time)
        self._let_writers_end(table)
        if table.damaged or not table.history:
            return
        time, paths = table.history[-1][0].time, frozenset(table.live_paths())
        announced = self._announce_freely(table, "savepoint")
        self._wait(random)
        with self._at_last(table):
            table.drop_instant(announced.time)
            if table.find(time) is not None and not table.damaged:
                self.world.watch.saved(table, paths)
                table.saved[time] = paths

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
            self._refuse_while_restored(table)
            if table.timeline.get(instant.time) is not instant:
                raise Aborted("it was restored away")
            index = table.read_index()
            live, held = table.live(), table.pending_groups(without=instant.time)
            for group, piece in read.items():
                if group not in live or live[group].names != piece.names or group in table.damaged:
                    raise Aborted(f"{group} was changed meanwhile")
                if group in held and table.setup.on_conflict is OnConflict.PLAN_WINS:
                    raise Aborted(f"{group} is in pending {held[group].time}")
            table.confirm(table.writers)
            instant.outputs = tuple(files)
            if instant.action == "replace":
                instant.replaces = tuple((piece.base.partition, group) for group, piece in read.items())
                instant.inputs = tuple(piece.names for piece in read.values())
            elif instant.action == "commit":
                written = {file.group for file in files if not file.log}
                instant.inputs = tuple(piece.names for group, piece in read.items() if group in written)
            table.complete(instant, index, changed)
            self.world.tell(f"{instant.action} {instant.time} of {table.name}: {', '.join(f.path for f in files)}")
        self.world.after("write commit")

    # Cleaning.

    def _roll_back_dead(self, table: TimelineTable) -> None:
        for instant in table.pending():
            if instant.plan_id is None and instant.action in _OF_WRITERS and instant.owner and instant.owner.dead:
                table.drop_instant(instant.time)

    @staticmethod
    def _refuse_while_restored(table: TimelineTable) -> None:
        if table.announced("restore", "rollback"):
            raise Aborted("the table is being restored")

    def _tidy(self, table: TimelineTable, random: Random) -> None:
        """Clean by ``KEEP_LATEST_COMMITS``, archive and compact the index, as a writer does inline after a commit."""
        with self._alone(table):
            self._roll_back_dead(table)
            run_pending_cleans(self.world, table, self._is_of_use, table.writers)
            if random.random() < 0.5:
                self._clean(table)
            self._archive(table)
            table.confirm(table.writers)
            table.compacted_at = table.clock()

    def _is_of_use(self, clean: Instant) -> bool:
        """Return True if a clean may run: an owner who rolls back handles the writers' cleans."""
        return is_of_today(self.table, clean)

    def restore(self, random: Random) -> None:
        """Restore an earlier commit; everything after it must still be on the timeline.

        The restore is on the timeline first, with the instants to undo; other processes may act in the next seconds.
        """
        table = self.table
        self._let_writers_end(table)
        last_clean = max((i.time for i in table.timeline.values() if i.action == "clean"), default="")
        first = max([last_clean, *table.archived])
        points = [i.time for i, _ in table.history if i.time >= first and i.action != "clean"]
        if len(points) < 2 or table.damaged:
            return
        time = random.choice(sorted(points)[-4:-1])
        undoes = tuple(i.time for i in table.timeline.values() if i.time > time)
        instant = self._announce_freely(table, "restore", before=time, undoes=undoes)
        self._wait(random)
        self._undo(table, instant)

    def roll_back(self, random: Random) -> None:
        """Roll back the newest commits up to one of lakefold's, except cleans: its replaced files are live again.

        The owner does so after a clean of the replaced files was killed, or without a reason.
        """
        table = self.table
        dead: list[Instant] = []
        for _ in range(40):
            cleans = [i for i in table.pending() if i.action == "clean" and i.is_lakefolds and i.owner]
            dead = [i for i in cleans if i.owner is not None and i.owner.dead]
            if dead:
                break
            self.world.scheduler.sleep(1.5)
        with self._alone(table):
            cleans = [i for i in table.timeline.values() if i.action == "clean"]
            last_clean = max((i.time for i in cleans if i.completed), default="")
            ours = [i for i in table.timeline.values() if i.plan_id is not None and i.completed]
            chosen = [i for i in ours if not dead or {base for base, _ in i.inputs} & set(dead[0].victims)]
            if not chosen or table.damaged:
                return
            first = max(i.time for i in chosen)
            undone = [i for i in table.timeline.values() if i.time >= first and i.action != "clean"]
            inputs = {path for i in undone for base, logs in i.inputs for path in (base, *logs)}
            if first < max([last_clean, *table.archived]) or not inputs <= table.files.keys():
                return
            instant = self._announce(table, "rollback", before=first, undoes=tuple(i.time for i in undone))
        self._wait(random)
        self._undo(table, instant)

    def _announce(self, table: TimelineTable, action: str, **known: object) -> Instant:
        """Put the owner's intended action on the timeline."""
        time = table.new_time()
        table.confirm(table.writers)
        return table.new_instant(action, self.process, time, **known)

    def _let_writers_end(self, table: TimelineTable) -> None:
        """Prepare an announcement without the lock, as Hudi's tools make it.

        The writers are stopped, lakefold is not. Raises Aborted if that takes long, or if an action is announced. No
        time passes between the end of the last writer's section and the end of this call.
        """
        until = self.world.scheduler.now + 12.0
        while table.is_changing or not (
            table.writers.is_free(self.world.scheduler.now) or table.writers.taken_by is table.ours.taken_by
        ):
            if self.world.scheduler.now >= until:
                raise Aborted("its writers do not stop, or lakefold does not")
            self.world.scheduler.sleep(0.5)
        if table.announced("restore", "rollback", "savepoint"):
            raise Aborted("a restore or a savepoint is pending")

    def _announce_freely(self, table: TimelineTable, action: str, **known: object) -> Instant:
        """``_announce`` without the lock, at once."""
        return table.new_instant(action, self.process, table.free_time(table.clock()), **known)

    def _wait(self, random: Random) -> None:
        self.world.scheduler.sleep(random.choice((0.0, 2.0, 25.0)) * random.random())

    def _undo(self, table: TimelineTable, announced: Instant) -> None:
        """Perform the announced action, without effect on later instants."""
        with self._at_last(table):
            self.world.tell(f"{table.name}: {announced.action} to {announced.before}")
            undone = table.undo(announced.undoes)
            table.drop_instant(announced.time)
            groups = [group for i in undone for _, group in i.replaces]
            paths = [path for i in undone if i.plan_id is not None for base, logs in i.inputs for path in (base, *logs)]
            self.world.watch.undone(table, undone, groups, paths)
            table.touch()

    @contextmanager
    def _at_last(self, table: TimelineTable) -> Iterator[None]:
        """Hold the writers' lock, however long it takes: an announced action must be completed."""
        held = ExitStack()
        while True:
            try:
                held.enter_context(table.locked(table.writers))
                break
            except Transient as error:
                self.world.tell(f"the owner of {table.name} tries again: {error}")
        with held:
            yield

    @contextmanager
    def _alone(self, table: TimelineTable) -> Iterator[None]:
        """Hold the writers' lock while no action is announced. Raises Aborted if there is one."""
        with table.locked(table.writers):
            if table.announced("restore", "rollback", "savepoint"):
                raise Aborted("a restore or a savepoint is pending")
            yield

    def switch_index(self) -> None:
        """Delete or build the index of files, as an owner does."""
        with self._alone(self.table):
            self.table.switch_index()

    def _clean(self, table: TimelineTable) -> None:
        victims, earliest = policy_victims(table, self.world.setup.clean_commits)
        if victims:
            # Read together with the victims: the savepoint of a kept file may be removed meanwhile.
            kept = min([earliest, *table.replaced_and_saved()])
            self.world.before("write clean")
            time, index = table.new_time(), table.read_index()
            table.confirm(table.writers)
            clean = table.new_instant("clean", None, time, victims=victims, earliest=kept, retained_from=earliest)
            run_clean(self.world, table, clean, index, table.writers)

    def _archive(self, table: TimelineTable) -> None:
        """Archive the oldest completed instants, up to the first one that must stay.

        As Hudi's archiver does: pending and saved instants stay, and so does the first replacement after which replaced
        files may exist, by the record of the last clean; a clean without this record counts itself.
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
