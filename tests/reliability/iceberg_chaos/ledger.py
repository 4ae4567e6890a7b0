# SPDX-License-Identifier: Apache-2.0
"""The rows that each snapshot of a table must have, from the writer's notes and the table's metadata files.

Each snapshot of the writer names the number of its act (``ACT``), and the writer notes an act before it begins it. So
the rows of a snapshot follow from the rows of its parent and the act. The parent may be a snapshot of another process
that committed in between. Snapshots of lakefold change no row. Every metadata file names its predecessor, so no change
is missed.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ACT = "chaos.act"
"""The key of an act's number in the summary of its snapshot."""

PLAN, WITHDRAWN, SERVICE = "lakefold.plan-id", "lakefold.withdrawn", "lakefold.service"
_OF_OTHERS = {"append", "update", "merge", "delete", "clear", "overwrite", "compact"}
_MOVES = {"rollback", "forward"}
#: the largest difference between a snapshot's time and the time of its metadata file
_SLACK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Row:
    """One row. ``extra`` has the values of added columns, by the number of the act that added the column."""

    write: int
    value: str
    dt: str
    extra: tuple[tuple[int, str | None], ...]


Rows = Mapping[int, Row]


def extra_of(column: int, number: int, key: int) -> str | None:
    """Return the value of an added column in a row that an act has written."""
    return None if key % 3 == 0 else f"x{column}-{number}-{key}"


def new_row(act: Mapping[str, Any], key: int) -> Row:
    """Return the row with the id ``key`` as an appending act writes it."""
    number, dts = act["number"], act["dts"]
    extra = tuple((column, extra_of(column, number, key)) for column in act["columns"])
    return Row(write=number, value=f"v{key}-{number}", dt=dts[key % len(dts)], extra=extra)


def after(act: Mapping[str, Any], rows: Rows) -> Rows:
    """Return the rows after an act."""
    what, number = act["act"], act["number"]

    def is_meant(key: int, row: Row) -> bool:
        return key % act["divisor"] == act["rest"] and row.dt in act["dts"]

    def updated(key: int, row: Row) -> Row:
        return replace(row, write=number, value=f"u{key}-{number}")

    if what == "append":
        return {**rows, **{key: new_row(act, key) for key in range(*act["ids"])}}
    if what == "update":
        return {key: updated(key, row) if is_meant(key, row) else row for key, row in rows.items()}
    if what == "merge":
        merged = {key: updated(key, rows[key]) if key in rows else new_row(act, key) for key in range(*act["ids"])}
        return {**rows, **merged}
    if what == "delete":
        return {key: row for key, row in rows.items() if not is_meant(key, row)}
    if what == "clear":
        return {key: row for key, row in rows.items() if row.dt not in act["dts"]}
    if what == "overwrite":
        kept = {key: row for key, row in rows.items() if row.dt not in act["dts"]}
        return {**kept, **{key: new_row(act, key) for key in range(*act["ids"])}}
    assert what == "compact", what
    return rows


def as_read(rows: Rows, columns: Sequence[int]) -> Counter[tuple[Any, ...]]:
    """Return the rows as a reader finds them in a snapshot whose schema has these added columns."""
    found: Counter[tuple[Any, ...]] = Counter()
    for key, row in rows.items():
        extra = dict(row.extra)
        found[key, row.write, row.value, row.dt, *(extra.get(column) for column in columns)] += 1
    return found


def difference(found: Counter[tuple[Any, ...]], wanted: Counter[tuple[Any, ...]]) -> str:
    """Describe the difference of the rows that a reader found from the wanted rows; '' if there is none."""
    missing, more = wanted - found, found - wanted
    if not missing and not more:
        return ""
    doubled = [row for row in more if wanted[row]]
    return (
        f"{missing.total()} rows missing, {more.total()} too many, of these {len(doubled)} doubled: "
        f"{sorted(missing, key=repr)[:3]} {sorted(more, key=repr)[:3]}"
    )


@dataclass(kw_only=True)
class Snapshot:
    """A snapshot that the table has or had; ``since`` is the time of its metadata file, by the file system."""

    id: int
    parent: int | None
    act: int | None
    plan: str | None
    schema: int | None
    since: float
    rows: Rows


@dataclass(kw_only=True)
class Ledger:
    """Follows the table's metadata. ``problems`` are the broken rules.

    Snapshots that lakefold expires must be older than ``kept_seconds`` and not among the newest ``kept_count`` of
    ``main``.
    """

    notes: Path
    kept_seconds: float
    kept_count: int
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    #: the snapshots that the table has now, by id
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    location: str = ""
    _commits: dict[str, list[int]] = field(default_factory=dict)
    _seen_acts: set[int] = field(default_factory=set)

    def acts(self) -> dict[int, dict[str, Any]]:
        """Return every act that was begun, by its number. ``ended`` is the time of its success."""
        found: dict[int, dict[str, Any]] = {}
        for line in self.notes.read_text().splitlines() if self.notes.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # a kill tore it
            found.setdefault(entry["number"], {}).update(entry)
        return found

    @property
    def head(self) -> int | None:
        """The current snapshot of ``main``."""
        found = self.metadata.get("current-snapshot-id")
        return None if found in (None, -1) else int(found)

    def columns(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """The added columns among ``names``, with the numbers of the acts that added them."""
        return [(name, int(name[1:])) for name in names if name[1:].isdigit()]

    def follow(self, location: str) -> None:
        """Read all metadata files from the last known one to ``location``."""
        waiting: list[tuple[str, Mapping[str, Any]]] = []
        known, current = self.location, location
        while current != known:
            document = json.loads(Path(current.removeprefix("file:")).read_text())
            waiting.append((current, document))
            log = document.get("metadata-log", ())
            if not log:
                if known:
                    self.problems.append(f"no metadata file before {current} is {known}: a commit is lost")
                break
            current = log[-1]["metadata-file"]
        acts = self.acts()
        for place, document in reversed(waiting):
            self._step(document, Path(place.removeprefix("file:")).stat().st_mtime, acts)
        self.location = location

    def _step(self, document: Mapping[str, Any], at: float, acts: Mapping[int, Mapping[str, Any]]) -> None:
        before, was = self.head, set(self.snapshots)
        listed = {int(one["snapshot-id"]): one for one in document.get("snapshots", ())}
        gone = was - listed.keys()
        if gone:
            self._judge_expiry(gone, at, acts)
        for number, one in sorted(listed.items(), key=lambda pair: pair[1].get("sequence-number", 0)):
            if number not in was:
                self._add(number, one, at, acts)
        self.metadata = document
        head = self.head
        if head != before and head is not None:
            if head not in was:
                if self.snapshots[head].parent != before:
                    self.problems.append(
                        f"snapshot {head} became main's and its parent is {self.snapshots[head].parent}, not {before}"
                    )
            else:
                self.counts["moves of main"] += 1
        for number in gone:
            del self.snapshots[number]

    def _add(self, number: int, one: Mapping[str, Any], at: float, acts: Mapping[int, Mapping[str, Any]]) -> None:
        summary, parent = one.get("summary", {}), one.get("parent-snapshot-id")
        rows: Rows = {} if parent is None else self.snapshots[parent].rows
        act = int(summary[ACT]) if ACT in summary else None
        if act is not None:
            rows = after(acts[act], rows)
            self._seen_acts.add(act)
        elif PLAN in summary:
            self._commits.setdefault(summary[PLAN], []).append(number)
            if summary.get("operation") != "replace":
                self.problems.append(f"plan {summary[PLAN]} is a snapshot of kind {summary.get('operation')}")
            if len(self._commits[summary[PLAN]]) > 1:
                self.problems.append(f"plan {summary[PLAN]} has several commits: {self._commits[summary[PLAN]]}")
            self.counts["commits of plans"] += 1
        elif WITHDRAWN in summary:
            self.counts["withdrawals"] += 1
        elif summary.get(SERVICE) == "manifests" and summary.get("operation") == "replace":
            self.counts["rewrites of manifests"] += 1
        else:
            self.problems.append(f"snapshot {number} names no act and no plan: {summary}")
        self.snapshots[number] = Snapshot(
            id=number,
            parent=parent,
            act=act,
            plan=summary.get(PLAN),
            schema=one.get("schema-id"),
            since=at,
            rows=rows,
        )

    def _judge_expiry(self, gone: set[int], at: float, acts: Mapping[int, Mapping[str, Any]]) -> None:
        by_writer = {one for act in acts.values() if act["act"] == "expire" for one in act["snapshots"]}
        newest = self._newest(self.kept_count)
        for number in gone - by_writer:
            self.counts["snapshots that lakefold expired"] += 1
            if (age := at - self.snapshots[number].since) < self.kept_seconds - _SLACK_SECONDS:
                self.problems.append(f"lakefold expired snapshot {number} when it was {age:.1f} s old")
            if number in newest:
                self.problems.append(f"lakefold expired snapshot {number}, one of the newest {self.kept_count}")
        self.counts["snapshots that the writer expired"] += len(gone & by_writer)

    def _newest(self, count: int) -> list[int]:
        found: list[int] = []
        current = self.head
        while current is not None and current in self.snapshots and len(found) < count:
            found.append(current)
            current = self.snapshots[current].parent
        return found

    def judge_acts(self) -> None:
        """Find acts that succeeded according to the writer's notes, but have no snapshot in the table."""
        acts = self.acts()
        for number, act in acts.items():
            if act["act"] in _OF_OTHERS and act.get("snapshot") and number not in self._seen_acts:
                self.problems.append(f"act {number} has been lost: {act}")
        moves = sum(act["act"] in _MOVES for act in acts.values())
        if self.counts["moves of main"] > moves:
            self.problems.append(f"main moved {self.counts['moves of main']} times, its owner did so {moves} times")
