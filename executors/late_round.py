# SPDX-License-Identifier: Apache-2.0
"""One round of the sweep in one partition: holds it, decides about its former places and does what was decided.

Each step is known to the database before it is taken, and can be taken again: a carry is a row before it is a copy,
a move back is a row before the catalog is called. So a round that dies anywhere leaves what the next one goes on
with. A partition is changed only while it is held, which keeps the cleaner and other rounds away, and plans from their
commits: what is brought in while a plan rewrites comes along as what any writer adds does.
"""

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from executors.keeping import Keeping
from executors.landed import find_moves, record_late
from lake.errors import CommitUnknown, Conflict, Integrity, LeaseLost, one_line
from lake.failpoints import failpoint
from lake.model import TableRef, words_of
from lake.moved import Carry, Former, Moved, PartitionSeen
from lake.optional import CarriesLateFiles, Fenced, LeavesPlaces
from lake.place_store import PlaceStore
from lake.places import Action, Decision, left_behind, written_back
from lake.plan import Move, PlacedFile
from lake.ports import TableFormat

log = logging.getLogger(__name__)

Decide = Callable[[Moved, PartitionSeen, timedelta], Decision]
"""What is done about a partition, by what is recorded, what is there, and for how long the answer was to wait."""


@dataclass(slots=True, kw_only=True)
class LateReport:
    """What a sweep did: files that it carried or set aside, partitions that it moved back, and which it can't settle.

    ``halts`` are those that a person has to settle, each with the reason.
    """

    carried: int = 0
    aside: int = 0
    moved_back: int = 0
    waiting: int = 0
    halts: dict[str, str] = field(default_factory=dict)
    #: partitions to look at again: a plan has them at its commit, or the cleaner, or others change them just now
    held: list[str] = field(default_factory=list, compare=False)

    @property
    def halted(self) -> str | None:
        """The first reason to halt a partition; None without one."""
        return next(iter(self.halts.values()), None)


class MovesPartitions(TableFormat, LeavesPlaces, Protocol):
    """A format that moves partitions, and so leaves places."""


class PartitionRound:
    """One round of the sweep in one partition, which it holds meanwhile."""

    def __init__(
        self,
        table: TableRef,
        format_: MovesPartitions,
        store: PlaceStore,
        writer: CarriesLateFiles,
        partition: str,
        decide: Decide,
        report: LateReport,
        keeping: Keeping,
    ) -> None:
        self._table, self._format, self._store, self._writer = table, format_, store, writer
        self._partition, self._decide, self._report, self._keeping = partition, decide, report, keeping
        #: to write of its places while it holds the partition, and not after that
        self._held = keeping.fenced(store, partition)
        #: in the names of its copies: a round that was stopped must not come upon those of the rounds after it
        self._nonce = uuid.uuid4().hex[:12]
        #: place and token that somebody has written back, as was seen last
        self._before: tuple[str, str | None] | None = None

    def run(self) -> None:
        """Hold the partition and settle it; nothing where somebody else has it, or changes it meanwhile."""
        if not self._keeping.hold({self._partition}):
            self._report.held.append(self._partition)
            return
        if isinstance(self._writer, Fenced):
            self._writer.fence = self.fence
        try:
            with self._keeping.renewing({self._partition}):
                self.settle()
        except CommitUnknown:
            # What was asked of the catalog may yet be done: the hold outlasts it, and ends by itself.
            raise
        except (Conflict, LeaseLost) as error:
            log.info("table %s, partition %s: %s; looked at again", self._table.name, self._partition, one_line(error))
            self._report.held.append(self._partition)
            self._keeping.release()
        except Integrity as error:
            self._halt(one_line(error))
            self._keeping.release()
        except BaseException:
            self._keeping.release()
            raise
        else:
            self._keeping.release()

    def fence(self) -> None:
        """Go on holding the partition. Raises LeaseLost where somebody else may have had it since it was held."""
        self._keeping.renew({self._partition})

    def settle(self) -> None:
        """Finish what an earlier round began, then do what the evidence says."""
        record, seen = self._look()
        begun = next((move for move in record.begun if move.token == seen.token), None)
        if begun is not None:
            self._held.end_move(self._table, begun)
            record, seen = self._look()
        elif record.begun:
            # Whoever began them held the partition for longer than such a call can take: they were not made.
            self._held.forget_moves(self._table, record.begun)
            record, seen = self._look()
        if seen.token not in (None, record.last.token):
            find_moves(self._table, format=self._format, store=self._store)
            record_late(self._table, format=self._format, store=self._store)
            record, seen = self._look()
        if behind := left_behind(record, seen):
            self._move_aside(record, behind)
            record, seen = self._look()
        if (seen.place, seen.token) == (record.last.place, record.last.token):
            if self._know_copies(record, seen):
                record, seen = self._look()
            if self._end_copied(record, seen):
                record, seen = self._look()
        decision = self._decide(record, seen, timedelta())
        if decision.action is Action.REPLACE:
            self._replace(record, decision)
            record, seen = self._look()
            decision = self._decide(record, seen, timedelta())
        if record.unsettled or decision.action is Action.WAIT:
            waited = self._held.unsettled(self._table, record, decision.action is Action.WAIT)
            decision = self._decide(record, seen, waited)
        if decision.action is Action.HALT:
            self._halt(decision.reason, of_table=decision.of_table)
        elif decision.action in (Action.WAIT, Action.REPLACE):  # the writer goes on
            self._report.waiting += 1
        else:
            self._forget_gone(record, seen, decision.cleared)
            shown = self._take_back(record, seen, decision)
            if decision.action is Action.MOVE_BACK:
                self._move_back(record, seen, decision)
            elif decision.action is Action.RESTORE:
                self._writer.tell(record.last, before=self._before)
            else:
                self._carry(record, seen, decision.files)
                self._set_aside(record, decision.aside)
                self._forget_gone(record, seen, [former.place for former in record.former])
            over = [carry for carry in record.carries if not (carry.done or carry.source in decision.files)]
            if decision.action is Action.RESTORE:  # where they are is not read from any more
                over = [carry for carry in over if carry.target not in shown]
            self._held.end_carries(self._table, [(carry, None) for carry in over])
            if decision.action is not Action.NOTHING or decision.aside:
                log.warning("table %s, partition %s: %s", self._table.name, self._partition, _told(decision))

    def _halt(self, reason: str, *, of_table: bool = False) -> None:
        self._report.halts[self._partition] = reason
        # What a partition was halted for before explains it, and says nothing of the others.
        if of_table := of_table and self._partition not in self._store.halted_partitions(self._table):
            is_new = self._store.halt_table(self._table, reason)
        else:
            is_new = self._store.halt_partition(self._table, self._partition, reason)
        if is_new:
            what = "the table" if of_table else words_of(self._partition)
            log.error("table %s: rewriting of %s is halted: %s", self._table.name, what, reason)

    def _look(self) -> tuple[Moved, PartitionSeen]:
        self.fence()
        (record,) = self._store.moved(self._table, [self._partition])
        seen = self._format.standing(self._table, [record])[self._partition]
        self._before = written_back(record, seen)
        return record, seen

    def _know_copies(self, record: Moved, seen: PartitionSeen) -> bool:
        """Record copies that readers see and the database does not know; whether there are any.

        It was set back to before a round that made them. Their sources would be copied once more.
        """
        known = {carry.source for carry in record.carries}.union(
            *((*one.inputs, *one.released) for one in record.former)
        )
        there = [file.path for file in seen.places[record.last.place].files]
        pairs = []
        for former in record.former:
            for source in seen.places[former.place].files.keys() - known:
                # Its name tells which file it is a copy of, whichever round has made it.
                head, tail = self._writer.target_of(source, record.last.place, self._nonce).split(self._nonce)
                copies = [path for path in there if path.startswith(head) and path.endswith(tail)]
                pairs += [(source, path) for path in copies[:1]]
        if pairs:
            self._held.begin_carries(self._table, self._partition, pairs, seen.came_ms)
        return bool(pairs)

    def _end_copied(self, record: Moved, seen: PartitionSeen) -> bool:
        """End carries whose copies are where the partition is; whether there were any that could be.

        What an overwrite that was at work meanwhile would have removed is taken back.
        """
        there = {file.path for file in seen.places[record.last.place].files}
        copied = [carry for carry in record.carries if not carry.done and carry.target in there]
        if not copied:
            return False
        decision = self._decide(record, seen, timedelta())
        if decision.action in (Action.WAIT, Action.HALT):
            return False
        self._writer.take_back(decision.revoked, decision.revoked)
        self._bring(record, [carry for carry in copied if carry.target not in decision.revoked])
        return True

    def _take_back(self, record: Moved, seen: PartitionSeen, decision: Decision) -> Collection[str]:
        """Remove copies of earlier rounds, or of this one, but for those that readers see, which are returned.

        Else they would be read when the partition is at their place the next time. One that was dropped and made anew
        is: what came from the one before it was dropped with that. What is still to be copied gets a new name, since
        under the old one a round that was stopped could yet remove it.
        """
        is_the_same = seen.token == record.last.token or self._before is not None
        read = {record.last.place, *([seen.place] if is_the_same else [])} - {decision.place}
        begun = {carry.target for carry in record.carries if not carry.done}
        shown = {place: begun & {file.path for file in there.files} for place, there in seen.places.items()}
        seen_by_readers = {target for place, targets in shown.items() if place in read for target in targets}
        # Where nobody has looked nobody can have taken one for shown.
        elsewhere = {target for target in begun if target.rpartition("/")[0] not in seen.places}
        self._writer.take_back(sorted(begun - seen_by_readers), elsewhere.union(*shown.values()))
        return seen_by_readers

    def _carry(self, record: Moved, seen: PartitionSeen, files: Sequence[PlacedFile]) -> None:
        pairs = [(file, self._writer.target_of(file, record.last.place, self._nonce)) for file in files]
        if pairs:
            self._held.begin_carries(self._table, self._partition, pairs, seen.came_ms)
            failpoint("carry_recorded")
            gone = self._writer.copy(pairs)
            copies = [(file, target) for file, target in pairs if file not in gone]
            # A copy takes its time, in which a writer may have overwritten what it was to be added to.
            record, seen = self._look()
            self._held.end_carries(self._table, [(one, None) for one in record.carries if one.source in gone])
            again = self._decide(record, seen, timedelta())
            if not {file for file, _ in copies} <= (set(again.files) if again.action is Action.CARRY else set()):
                self._take_back(record, seen, again)
                raise Conflict("another writer was there meanwhile")
            self._writer.show(copies)
            failpoint("carry_copied")
            # The overwrite may also have been at its end, and have looked already what there is to remove.
            record, seen = self._look()
            if copies and (not self._end_copied(record, seen) or self._decide(record, seen, timedelta()).revoked):
                raise Conflict("another writer was there meanwhile")

    def _replace(self, record: Moved, decision: Decision) -> None:
        """Have the copies of files that grew be what these are now, and their records say so."""
        former = {one.place: one for one in record.former}
        done = []
        for one in decision.regrown:
            copy = self._writer.replace(one.new, one.copy, one.old)
            done.append((one, former[one.old.directory], copy))
        failpoint("copy_replaced")
        self._writer.tell(record.last, before=self._before)
        self._held.replaced(self._table, record.last, done)
        self._report.carried += len(done)
        log.warning("table %s, partition %s: %s", self._table.name, self._partition, decision.reason)

    def _bring(self, record: Moved, carries: Sequence[Carry]) -> None:
        """Have the catalog count what was copied, and note that it is done."""
        if not carries:
            return
        self._writer.tell(record.last, before=self._before)
        failpoint("carry_told")
        former = {one.place: one for one in record.former}
        ended = [(carry, former.get(carry.source.directory)) for carry in carries]
        self._held.end_carries(self._table, ended)
        self._report.carried += len(carries)

    def _move_back(self, record: Moved, seen: PartitionSeen, decision: Decision) -> None:
        """The former place is the partition's again, with what goes along; what was left waits for its deletion.

        Where somebody changes the partition meanwhile nothing stays there that it would be read with later.
        """
        try:
            self._try_to_move_back(record, seen, decision)
        except Conflict:
            record, seen = self._look()
            self._take_back(record, seen, self._decide(record, seen, timedelta()))
            raise

    def _try_to_move_back(self, record: Moved, seen: PartitionSeen, decision: Decision) -> None:
        place = decision.place
        assert place is not None
        along = [(file, self._writer.target_of(file, place, self._nonce)) for file in decision.files]
        if along:
            self._held.begin_carries(self._table, self._partition, along, seen.came_ms)
            failpoint("carry_recorded")
            if self._writer.copy(along):
                raise Conflict("files that were to go along are gone")
            self._writer.show(along)
            failpoint("carry_copied")
        record, seen = self._look()
        again = self._decide(record, seen, timedelta())
        if (again.action, again.place, again.files) != (decision.action, place, decision.files):
            raise Conflict("another writer was there meanwhile")
        over = tuple(seen.places[place].files)
        move = Move(
            partition=self._partition,
            token=f"back-{uuid.uuid4().hex}",
            left=record.last.place,
            place=place,
            files=over,
            made_at=record.last.made_at,
        )
        elsewhere = {one.place: one for one in record.former if one.place != place}
        # What an overwrite of the place that is left had removed before is nobody's to miss there.
        published = [file for file in record.last.files if file in seen.places[record.last.place].files]
        left = [file for file in (*decision.files, *decision.aside) if file.directory not in elsewhere]
        self._held.begin_move(self._table, move, record.plan_id, list(dict.fromkeys([*published, *left])))
        failpoint("move_recorded")
        self._writer.tell(record.last, move, before=self._before)
        failpoint("move_told")
        self._held.end_move(self._table, move)
        self._set_aside(record, [file for file in decision.aside if file.directory in elsewhere])
        self._end_along(along, elsewhere)
        self._report.moved_back += 1

    def _end_along(self, along: Iterable[tuple[PlacedFile, str]], elsewhere: Mapping[str, Former]) -> None:
        sources = {source for source, _ in along}
        (now,) = self._store.moved(self._table, [self._partition])
        ended: list[tuple[Carry, Former | None]] = [
            (carry, elsewhere.get(carry.source.directory)) for carry in now.carries if carry.source in sources
        ]
        self._held.end_carries(self._table, ended)

    def _move_aside(self, record: Moved, files: Sequence[PlacedFile]) -> None:
        moved = self._writer.move_aside(files)
        failpoint("aside_moved")
        for former in record.former:
            if former.place == record.home:
                self._held.moved_aside(self._table, self._partition, former, moved)
                # What somebody else has removed by now comes back to nobody.
                self._held.gone(self._table, former, [file for file in files if file not in moved])
        self._report.aside += len(moved)
        log.warning(
            "table %s, partition %s was dropped: %d replaced files of its own directory are moved aside, since it "
            "would have been read from them when it is added again",
            self._table.name,
            self._partition,
            len(moved),
        )

    def _set_aside(self, record: Moved, files: Sequence[PlacedFile]) -> None:
        by_place: dict[str, list[PlacedFile]] = defaultdict(list)
        for file in files:
            by_place[file.directory].append(file)
        for former in record.former:
            if by_place[former.place]:
                self._held.set_aside(self._table, self._partition, former, by_place[former.place])
        self._report.aside += len(files)

    def _forget_gone(self, record: Moved, seen: PartitionSeen, places: Collection[str]) -> None:
        """What an overwrite removed from former places is not missed, once it is decided what becomes of its rows."""
        if (seen.place, seen.token) != (record.last.place, record.last.token):
            return
        for former in record.former:
            gone = [file for file in former.inputs if file not in seen.places[former.place].files]
            if gone and former.place in places:
                self._held.gone(self._table, former, gone)


def _told(decision: Decision) -> str:
    kept = "" if not decision.aside else f"; {len(decision.aside)} older files are kept aside: {decision.aside[0].path}"
    return f"{decision.reason}: {decision.action}, {len(decision.files)} files carried{kept}"
