# SPDX-License-Identifier: Apache-2.0
"""Compares the table with the ledger: its present state, its older states, and the changes since each of them.

An incremental read begins at a commit and ends at the newest one. It reports the commits after its beginning
(``promises.since``). The comparison expects the following of it:

- It returns each present row that one of these commits wrote last, once, with the row's newest values. The commit of a
  row is in ``_hoodie_commit_time``, which clusterings and compactions do not change. So a row that was only copied by
  one of them does not count as changed. A row that was written since the beginning, and copied afterwards, counts.
- It does not return rows that are gone: deleted rows, and rows of partitions that were deleted or overwritten. A row
  that was written and deleted since the beginning leaves no trace.
- On merge-on-read tables it returns merged rows, as a snapshot does, but does not read base files from before the
  beginning.
- It needs the records of its commits and the newest files, but no older files. So it may begin at every commit of the
  active timeline, even if the state at that commit can't be read any longer (``promises.promised_from``).
- Merge-on-read tables of version 6: while a compaction is pending that is older than the beginning, it may leave out
  rows of file groups that were written in between (``promises.groups_hidden_by_compactions``).
- Table version 6: Hudi refuses the read while a write is pending that began earlier than the newest commit (a "hollow
  commit"). Otherwise a reader that goes by the times of requests would never see that write.

Hudi also refuses a time travel to a commit that is later than a pending one.
"""

import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from chaos.ledger import Ledger, State
from chaos.promises import Commit, commits_of, groups_hidden_by_compactions, promised_from, since, timeline_of
from chaos.readers import differences, groups_in_spark, in_duckdb, in_hudi_rs, in_spark
from chaos.stage import Stage

_TRIES = 4
#: how many older states and beginnings are read besides the oldest, if not all are read
_AT_RANDOM = 3
_NO_ROWS: Counter[str] = Counter()
_HOLLOW = re.compile("hollow commit|must be earlier than the first incomplete commit", re.IGNORECASE)


class Comparing:
    """Compares the table of a stage with its ledger. ``counts`` has the numbers of comparisons and reads, by kind."""

    def __init__(self, stage: Stage, ledger: Ledger, spark: Any, random: Random) -> None:
        self._stage, self._ledger, self._spark, self._random = stage, ledger, spark, random
        self._base = stage.base
        self.counts: Counter[str] = Counter()

    def compare(self, *, duckdb: bool = False, everything: bool = False) -> None:
        """Check that every reader sees the ledger's rows and types. No writer runs; lakefold may be in any step.

        With ``everything`` all older states and beginnings are read, else the oldest and some others. Raises
        AssertionError with all differences.
        """
        now = self._ledger.state()
        readers: dict[str, Callable[[], Any]] = {
            "Spark": lambda: in_spark(self._spark, self._base, now),
            "hudi-rs": lambda: in_hudi_rs(self._base, now),
        }
        if duckdb:
            readers["DuckDB"] = lambda: in_duckdb(self._base, now)
        for name, read in readers.items():
            found = self._read(name, read)
            self.counts["in Spark alone"] += found is None
            if found is not None and (wrong := differences(now, *found)):
                self._wrong(name, wrong)
        self._compare_older(now, everything=everything)
        assert not self._stage.problems, "\n".join(self._stage.problems)
        self.counts["comparisons"] += 1
        self._stage.say(f"equal: {len(now.rows)} rows, {now.evolutions} evolutions")

    def _compare_older(self, now: State, *, everything: bool) -> None:
        """Compare older states, and the changes since then. Restores and savepoints allow other states to be read."""
        states = self._ledger.states()
        commits = commits_of(self._base, states)
        first = promised_from(self._base)
        for commit in self._some(commits, everything=everything):
            self._since(commit, commits, now)
        for commit in self._some([c for c in commits if first and c.instant >= first], everything=everything):
            steps = [one.label for one in commits if one.label and one.instant <= commit.instant]
            if steps:
                self._as_of(commit.instant, states[steps[-1]])

    def _some(self, commits: list[Commit], *, everything: bool) -> list[Commit]:
        others = commits[1:]
        return commits[:1] + (others if everything else self._random.sample(others, min(_AT_RANDOM, len(others))))

    def _as_of(self, instant: str, then: State) -> None:
        def is_over() -> bool:
            first = promised_from(self._base)
            return first is None or instant < first

        options = {"as.of.instant": instant}
        self.counts["older states read"] += self._is_right(f"Spark as of {instant}", options, then, is_over)

    def _since(self, begin: Commit, commits: list[Commit], now: State) -> None:
        """Compare the changes since a commit with the ledger, by the rules in the module's docstring."""
        told, after = since(begin, commits)
        # A row's ``ts`` is the number of the step that wrote it last.
        numbers = {int(one.label.split("-")[2]) for one in after if one.label}
        changed = State({key: row for key, row in now.rows.items() if row["ts"] in numbers}, now.evolutions)
        options = {"hoodie.datasource.query.type": "incremental", "hoodie.datasource.read.begin.instanttime": told}
        steps = ", ".join(str(number) for number in sorted(numbers))
        name = f"Spark incrementally since {told} (steps {steps or 'none'})"
        hidden = self._hidden(begin, commits, changed)
        self.counts["incremental reads"] += self._is_right(name, options, changed, lambda: False, hidden)

    def _hidden(self, begin: Commit, commits: list[Commit], changed: State) -> Counter[str]:
        """Return those of the ``changed`` rows that Hudi may leave out of an incremental read."""
        groups = groups_hidden_by_compactions(self._base, begin, commits)
        where = groups_in_spark(self._spark, self._base) if groups else {}
        rows = {key: row for key, row in changed.rows.items() if where.get(key) in groups}
        return State(rows, changed.evolutions).multiset()

    def _is_right(
        self,
        name: str,
        options: Mapping[str, str],
        then: State,
        is_over: Callable[[], bool],
        optional: Counter[str] = _NO_ROWS,
    ) -> bool:
        """True if Spark's answer has the ledger's rows; False if it differs, or the state is no longer readable.

        ``optional`` rows may be missing.
        """
        wrong: list[str] = []
        for _ in range(2):  # a clean by lakefold may have run during the first read
            found = self._read(name, lambda: in_spark(self._spark, self._base, then, options), is_over)
            if found is None:
                return False
            wrong = differences(then, *found, types=False, optional=optional)
            if not wrong:
                if hidden := (then.multiset() - found[1]).total():
                    self._stage.say(f"{name}: Hudi leaves out {hidden} rows beside a pending compaction")
                    self.counts["rows hidden by compactions"] += hidden
                return True
            if is_over():
                return False
        self._wrong(name, wrong)
        return False

    def _wrong(self, name: str, lines: list[str]) -> None:
        copy = self._stage.home / "evidence"
        if not copy.exists():
            shutil.copytree(self._base, copy, ignore_dangling_symlinks=True)
        self._stage.wrong(f"{name} at {copy}: " + "\n  ".join(lines))

    def _read(self, name: str, read: Callable[[], Any], is_over: Callable[[], bool] = lambda: False) -> Any:
        """Return what a reader finds. A writer that keeps one version may delete the files during the read."""
        for left in reversed(range(_TRIES)):
            try:
                return read()
            except Exception as error:
                causes = re.findall("Caused by: [^\n]*", str(error))
                text = f"{name} can't read the table: {str(error).strip()[:600]} {'; '.join(causes[-1:])}"
                self._stage.say(text)
                if is_over() or (_HOLLOW.search(str(error)) and self._is_pending()):
                    return None
                if left == 0:
                    self._stage.wrong(text)
                time.sleep(1)
        return None

    def _is_pending(self) -> bool:
        """True if an action is pending on the timeline."""
        names = [path.name for path in timeline_of(self._base).iterdir() if path.name[:17].isdigit()]
        ended = {name[:17] for name in names if not name.endswith((".requested", ".inflight"))}
        return any(name[:17] not in ended for name in names)
