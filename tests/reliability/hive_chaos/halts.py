# SPDX-License-Identifier: Apache-2.0
"""Halts that arise on purpose, or that the owner's acts explain, and how a person ends them.

What must not end with rewriting is looked at meanwhile.

Partition ``SPLIT`` is halted as lakefold halts one by itself: it is overwritten where it is and where it was, while
the daemon stands still. The table is halted with the store's own call, which an executor makes whose proof fails.
"""

import random
import re
import signal
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from chaos.processes import Victim
from harness import Installation
from hive_race.ledger import Ledger, Read, Write
from hive_race.readers import rows_at
from hive_race.writer import Notes
from waiting import wait_for

from hive_chaos.catalog import directory_of, places
from hive_chaos.owner import SPLIT, SPLITS_FROM
from hive_chaos.processes import Owner, content_of
from service.control.store.errors import NotFound
from service.control.wiring import open_config, open_store

SPLIT_PARTITION = f"dt={SPLIT}"
_MOVED_WITHIN_SECONDS = 240.0
_HALTED_WITHIN_SECONDS = 240.0
_SETTLED_WITHIN_SECONDS = 240.0
#: the reason of a halt for late files in a location that the owner has given up since; a lost database may cause it,
#: which had the decision on these files, and so may an owner who moves the partition before they are due
_AFTER_OWNER_MOVE = re.compile("files were written to (?P<location>.+) before the compaction that followed the move")
#: the reason of a halt if the metastore has not stored what lakefold wrote
_LOST_UPDATE = re.compile("another program changed .+ in the metastore during a (commit|sweep)")
#: an act of the owner and a call of lakefold that meet in the metastore are this close; a halt is recorded this much
#: later at most, unless a fault prevents it
_MET_WITHIN_SECONDS = 60.0


class Halts:
    """Which halts there are to be, and whether others are there. ``wrong`` is told of what must not be.

    ``is_due`` says whether a read has to have the rows of a write.
    """

    def __init__(
        self,
        owner: Owner,
        uri: str,
        kind: str,
        chance: random.Random,
        wrong: Callable[[str], None],
        is_due: Callable[[Write, Read], bool],
    ) -> None:
        self._owner, self._uri, self._kind, self._chance, self._wrong = owner, uri, kind, chance, wrong
        self._is_due = is_due
        self._notes, self._number = Notes(owner.home / "writes"), SPLITS_FROM
        self._is_split, self._halted_table = False, ""
        #: the database with the decision on an earlier halt of ``SPLIT`` is lost
        self._is_undecided = self._is_database_lost = False
        #: table and partition of what was halted on purpose
        self._settled: set[tuple[str, str]] = set()
        #: when halts were looked for last, in wall-clock seconds
        self._judged_at = time.time()
        self._told: set[str] = set()

    def judge(self, status: Mapping[str, Any], installation: Installation) -> None:
        """Find halts that nothing was done for. A table that was renamed keeps those of its former names.

        The run ends halts for late files in a location that the owner has given up, as a person would: the rows are in
        the present location. Only a lost database, or a move by the owner before the files were due, explains them. The
        run also ends halts of partitions that the owner moved during a commit or sweep.
        """
        before, self._judged_at = self._judged_at, time.time()
        for entry in status["attention"]:
            table, found = entry["table"], dict[str, str]()
            if entry["halted_at"]:
                found[""] = entry["halted_reason"]
            found |= {one["partition"]: one["halted_reason"] for one in entry["halted_partitions"]}
            for partition, reason in found.items():
                if self._is_on_purpose(table, partition):
                    self._settled.add((table, partition))
                elif self._is_after_owner_move(partition, reason):
                    self._settled.add((table, partition))
                    if table == self._owner.table:  # tried again at the next look if the table is renamed meanwhile
                        installation.run(*_resolve_words(table, partition, "current"), expect=None)
                elif self._is_lost_update(table, partition, reason, before):
                    self._settled.add((table, partition))
                    # Ends all halts of the table, so not while there is one on purpose.
                    if table == self._owner.table and not (self._is_split or self._halted_table):
                        installation.run("resume", table, expect=None)
                elif (text := f"halted: {table}, {partition or 'all of it'}: {reason}") not in self._told:
                    self._told.add(text)
                    self._wrong(text[:1500])

    def _is_after_owner_move(self, partition: str, reason: str) -> bool:
        """True for a halt for late files which a lost database, or a move of the partition by its owner, explains.

        An owner who moves a partition copies the rows that are read then. Until a late file is due, its rows may be
        missing there, and lakefold can't tell whether an overwrite has removed them.
        """
        found = _AFTER_OWNER_MOVE.search(reason)
        if found is None or self._is_database_lost:
            return found is not None
        name = partition.partition("=")[2]
        moves = [act["at"] for act in self._owner.acts if act["act"] == "away" and act["partition"] == name]
        numbers = self._writes_at(found["location"])
        for write in Ledger.of(self._owner.home / "writes").writes[name]:
            at = min((at for at in moves if write.ended is not None and at >= write.ended), default=None)
            if write.number in numbers and at is not None:
                copied = Read(partition=name, place=None, began=at, ended=at, rows={})
                if not self._is_due(write, copied):
                    return True
        return False

    def _is_lost_update(self, table: str, partition: str, reason: str, since: float) -> bool:
        """True if the owner moved the partition shortly before the halt, which arose after ``since``.

        The metastore then has stored either change, or parts of both: it compares nothing.
        """
        if _LOST_UPDATE.match(reason) is None:
            return False
        return (table, partition) in self._settled or any(
            act["act"] in ("away", "back")
            and f"dt={act['partition']}" == partition
            and act["at"] > since - _MET_WITHIN_SECONDS
            for act in self._owner.acts
        )

    def _writes_at(self, location: str) -> set[int]:
        """The numbers of the writes with rows in a location, which is relative in the table's directory."""
        while True:
            directory = directory_of(self._uri, lambda: self._owner.table)
            with suppress(FileNotFoundError):
                found = {number for _, number in rows_at(directory / location)}
                if directory == directory_of(self._uri, lambda: self._owner.table):
                    return found

    def _is_on_purpose(self, table: str, partition: str) -> bool:
        if (table, partition) in self._settled and table != self._owner.table:
            return True
        if partition == SPLIT_PARTITION:
            return self._is_split or self._is_undecided
        return not partition and table == self._halted_table

    def forget(self) -> None:
        """The database is lost, and with it a decision on ``SPLIT``: while both overwrites are there, it halts anew."""
        self._is_undecided, self._is_database_lost = self._number > SPLITS_FROM, True

    # A partition.

    def settle_again(self, installation: Installation, status: Callable[[], Mapping[str, Any]]) -> None:
        """Decide once more on a halt whose decision is lost: the partition is where its rows are."""
        if self._is_undecided and self._is_halted(status):
            self._decide(installation, "current")

    def split(self, daemon: Victim) -> bool:
        """Overwrite ``SPLIT`` where it is and where it was; False where it was not moved in time.

        The owner must not rename the table meanwhile.
        """
        for _ in range(3):
            self._append(places(self._uri, self._owner.table)[SPLIT])
        before, deadline = places(self._uri, self._owner.table)[SPLIT], time.monotonic() + _MOVED_WITHIN_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.2)
            if not daemon.running or places(self._uri, self._owner.table)[SPLIT] == before:
                continue
            daemon.signal(signal.SIGSTOP, "all")
            try:
                time.sleep(1)  # a call of the metastore's that it had sent ends
                here = places(self._uri, self._owner.table)[SPLIT]
                if before.is_dir() and here != before and here.is_dir():
                    self._overwrite_both(here, before)
                    return True
                before = here  # it was on its way home
            finally:
                daemon.wake()
        return False

    def place(self) -> tuple[str, Path | None]:
        """The table's name and where the partition is; neither changes while it is halted, but for a rename.

        While the table is renamed, the metastore has the new name before its owner has noted it.
        """

        def found() -> tuple[str, Path | None] | None:
            table = self._owner.table
            return (table, there.get(SPLIT)) if (there := places(self._uri, table)) else None

        table, place = wait_for(found, f"the metastore has no table {self._owner.table}", every=0.2)
        return table, place

    def wait_until_split(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """Wait until the partition is halted, under the name that its table has by then."""

        what = f"{SPLIT_PARTITION} of {self._owner.table} was halted"
        wait_for(lambda: self._is_halted(status), what, _HALTED_WITHIN_SECONDS, every=1)

    def _is_halted(self, status: Callable[[], Mapping[str, Any]]) -> bool:
        return (self._owner.table, SPLIT_PARTITION) in {
            (entry["table"], one["partition"]) for entry in status()["attention"] for one in entry["halted_partitions"]
        }

    def resolve(self, installation: Installation) -> None:
        """Say which of the overwrites counts; the owner is held."""
        self._decide(installation, self._take)
        self._is_split = False
        for number in (self._number - 1, self._number):
            self._notes.add(number=number, ended=time.time())

    def _decide(self, installation: Installation, keep: str) -> None:
        words = _resolve_words(self._owner.table, SPLIT_PARTITION, keep)
        answer = ""

        def is_settled() -> bool:
            nonlocal answer
            done = installation.run(*words, expect=None)
            answer = done.stdout + done.stderr
            return done.returncode == 0

        wait_for(is_settled, lambda: f"{' '.join(words)}: {answer[-1500:]}", _SETTLED_WITHIN_SECONDS, every=2)

    def _append(self, place: Path) -> None:
        number = self._noted(overwrites=False)
        self._put(place, number)
        self._notes.add(number=number, ended=time.time())

    def _overwrite_both(self, here: Path, former: Path) -> None:
        """The overwrite that will count has the higher number, and so is the later one in the ledger."""
        self._is_split = True
        self._take = self._chance.choice(("previous", "current"))
        loser, winner = (self._noted(overwrites=True) for _ in range(2))
        # Where it is comes first: the other one is younger then, and nothing tells whether it has met these files.
        numbers = (winner, loser) if self._take == "current" else (loser, winner)
        for place, number in zip((here, former), numbers, strict=True):
            for path in sorted(place.iterdir()):
                if not path.name.startswith((".", "_")):
                    path.unlink()
            self._put(place, number)
            time.sleep(0.05)

    def _noted(self, *, overwrites: bool) -> int:
        self._number += 1
        low = self._number * 1000
        self._notes.add(
            number=self._number, overwrites=overwrites, began=time.time(), partitions={SPLIT: (low, low + 12)}
        )
        return self._number

    def _put(self, place: Path, number: int) -> None:
        """A file as Spark's jobs leave them: under its name once it is whole."""
        path = place / f"part-{number}.{self._kind}"
        begun = path.with_name(f".{path.name}.begun")
        begun.write_bytes(content_of(self._kind, number))
        begun.rename(path)

    # The table.

    def halt_table(self, installation: Installation) -> Collection[str]:
        """Halt the table; the plans that run at that moment. Its name stays until ``resume``."""
        self._halted_table = self._owner.table

        def halt() -> bool:
            with suppress(NotFound), closing(open_store(open_config(installation.config))) as store:
                return store.halt_table(store.table_state(self._halted_table).ref, "its rows differ, says this test")
            return False

        wait_for(halt, f"{self._halted_table} is not registered", _HALTED_WITHIN_SECONDS, every=1)
        # Plans of a former name may be shown under this one only later.
        return self._plans(installation, "inflight") | self._plans(installation, "completed")

    def resume(self, installation: Installation, begun: Collection[str]) -> None:
        """End the halt. No plan but those that were ``begun`` has been completed during it."""
        if more := self._plans(installation, "completed", "--table", self._halted_table).difference(begun):
            self._wrong(f"completed while {self._halted_table} was halted: {sorted(more)}")
        installation.run("resume", self._halted_table)
        self._halted_table = ""

    def _plans(self, installation: Installation, state: str, *words: str) -> set[str]:
        plans = installation.json("plans", "list", "--state", state, "--limit", "1000", *words)
        # Commits that a rebuilt database finds in the table become plans of the sweep.
        return {plan["plan_id"] for plan in plans if plan["actor"] != "sweep"}


def _resolve_words(table: str, partition: str, keep: str) -> tuple[str, ...]:
    return "tables", "resolve", table, "--partition", partition, "--keep", keep
