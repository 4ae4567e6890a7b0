# SPDX-License-Identifier: Apache-2.0
"""Writers, plans, the sweep and the cleaner in any order on one partition: its rows are those of a serial order.

A writer reads the partition's location when it begins, and writes there even if the partition is relocated meanwhile.
"""

import random
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from lake.plan import LocatedFile, Relocation
from lake.relocation.decide import RelocationAction, RelocationDecision, decide
from lake.relocation.model import LateCopy, LocationState, PartitionState, PreviousLocation, RelocatedPartition


@dataclass
class Writer:
    """One job. An overwrite is static, and empties its directory early, or dynamic, and does so at its end."""

    row: str
    overwrites: bool
    static: bool
    location: str
    began: int
    token: str | None = None
    wrote: int | None = None
    ended: int | None = None
    #: whether it finally writes back the catalog entry that it read when it began, as Hive does
    writes_back: bool = False
    #: whether it writes to the partition's own directory and finally sets the location to it, as Flink does
    points_back: bool = False


@dataclass
class Situation:
    """One partition: its entry in the catalog, its directories, its records in the database.

    Or one table without partitions, whose versions are ``nested`` in its own directory: an overwrite of this directory
    removes them.
    """

    nested: bool = False
    now: int = 0
    location: str = "original"
    token: str | None = None
    locations: dict[str, dict[LocatedFile, int]] = field(default_factory=lambda: {"original": {}})
    rows: dict[str, tuple[str, ...]] = field(default_factory=dict)
    writers: list[Writer] = field(default_factory=list)
    latest: Relocation | None = None
    previous: dict[str, PreviousLocation] = field(default_factory=dict)
    late_copies: list[LateCopy] = field(default_factory=list)
    is_halted: bool = False
    removed_trees: set[str] = field(default_factory=set)
    earlier_locations: set[tuple[str, str | None]] = field(default_factory=set)

    def add(self, location: str, name: str, rows: tuple[str, ...], at: int) -> LocatedFile:
        file = LocatedFile(path=f"{location}/{name}", bytes=1, modified_ms=at)
        self.locations[location][file] = self.now
        self.rows[file.path] = rows
        return file

    # Writers.

    def begin(self, row: str, *, overwrites: bool, static: bool, writes_back: bool, points_back: bool) -> None:
        location = "original" if points_back else self.location
        self.writers.append(
            Writer(
                row,
                overwrites,
                static,
                location,
                self.now,
                self.token,
                writes_back=writes_back,
                points_back=points_back,
            )
        )
        if overwrites and static and not self.nested:
            self.locations[location].clear()

    def write(self, writer: Writer) -> None:
        writer.wrote = self.now
        # Time has passed since the writer read the location.
        if writer.overwrites and writer.static and self.nested:
            for location in [writer.location] if writer.location != "original" else self.locations:
                self.locations[location].clear()
                self.removed_trees |= {location} - {writer.location}

    def end(self, writer: Writer) -> None:
        assert writer.wrote is not None
        writer.ended = self.now
        if writer.overwrites and not writer.static:
            self.locations[writer.location].clear()
        self.add(writer.location, f"part-{writer.row}", (writer.row,), writer.wrote)
        if writer.writes_back:
            self.location, self.token = writer.location, writer.token
        if writer.points_back:
            self.location = "original"

    # lakefold.

    def decision(self) -> RelocationDecision:
        assert self.latest is not None
        record = RelocatedPartition(
            latest=self.latest,
            previous_locations=tuple(self.previous.values()),
            late_copies=tuple(self.late_copies),
            earlier_locations=frozenset(self.earlier_locations),
        )
        locations = {
            location: LocationState(files=dict(files), is_tree_removed=location in self.removed_trees)
            for location, files in self.locations.items()
        }
        return decide(
            record, PartitionState(location=self.location, token=self.token, locations=locations), timedelta()
        )

    def is_unchanged(self) -> bool:
        if self.latest is None:
            return True
        decision = self.decision()
        return decision.action is RelocationAction.NOTHING and not decision.superseded_files

    def plan(self) -> None:
        """Rewrite all files into one, in a new location."""
        here = self.locations[self.location]
        if not here or not self.is_unchanged():
            return
        location = f"v{self.now}"
        self.locations[location] = {}
        self.add(location, "compacted", tuple(row for file in here for row in self.rows[file.path]), self.now)
        self.relocate(location, tuple(here))

    def relocate(self, location: str, inputs: tuple[LocatedFile, ...]) -> None:
        left = self.latest.location if self.latest else self.location
        self.earlier_locations.add((left, self.latest.token if self.latest else None))
        self.location, self.token = location, f"t{self.now}"
        self.latest = Relocation(
            partition="p",
            token=self.token,
            previous_location=left,
            location=location,
            files=tuple(self.locations[location]),
        )
        self.previous.pop(location, None)
        self.previous[left] = PreviousLocation(location=left, expected_files=inputs)

    def copy(self, files: tuple[LocatedFile, ...], location: str) -> None:
        for file in files:
            copied = self.add(location, f"copy-{file.path.replace('/', '-')}", self.rows[file.path], file.modified_ms)
            self.late_copies.append(LateCopy(row_id=0, partition="p", source=file, target=copied.path, is_done=True))

    def expect(self, location: str, files: tuple[LocatedFile, ...]) -> None:
        """Expect the copied and superseded files until their deletion; files that an overwrite removed are dropped."""
        previous = self.previous[location]
        kept = (*previous.expected_files, *(file for file in files if file.path.startswith(f"{location}/")))
        self.previous[location] = PreviousLocation(
            location=location,
            expected_files=tuple(file for file in kept if file in self.locations[location]),
            is_cleaning_begun=previous.is_cleaning_begun,
            possible_files=previous.possible_files,
        )

    def sweep(self) -> None:
        if self.latest is None or self.is_halted:
            return
        decision = self.decision()
        if decision.action is RelocationAction.HALT:
            self.is_halted = True
        elif decision.action is RelocationAction.RELOCATE_BACK:
            assert decision.target_location is not None
            here = tuple(self.locations[self.latest.location])
            self.copy(decision.files_to_copy, decision.target_location)
            for location in list(self.previous):
                if location != decision.target_location:
                    self.expect(location, (*decision.files_to_copy, *decision.superseded_files))
            self.relocate(decision.target_location, here)
        elif decision.action is not RelocationAction.WAIT and (
            decision.files_to_copy or decision.superseded_files or decision.action is RelocationAction.REAPPLY
        ):
            self.location, self.token = self.latest.location, self.latest.token
            self.copy(decision.files_to_copy, self.location)
            for location in list(self.previous):
                self.expect(location, (*decision.files_to_copy, *decision.superseded_files))

    def clean(self) -> None:
        if self.latest is None or not self.is_unchanged():
            return
        for location, previous in list(self.previous.items()):
            for file in previous.expected_files:
                self.locations[location].pop(file, None)
            self.previous[location] = PreviousLocation(
                location=location,
                expected_files=(),
                possible_files=(*previous.possible_files, *previous.expected_files),
                is_cleaning_begun=True,
            )

    def visible(self) -> list[str]:
        return sorted(row for file in self.locations[self.location] for row in self.rows[file.path])


def run(seed: int, *, nested: bool, hive: bool, flink: bool) -> Situation:
    choose, situation = random.Random(seed), Situation(nested=nested)
    situation.add("original", "base", ("base",), 0)
    for step in range(choose.randint(6, 22)):
        situation.now += 1
        running = [one for one in situation.writers if one.ended is None]
        step_kind = choose.choice(
            ["begin", "begin", "writer", "writer", "writer", "plan", "plan", "sweep", "sweep", "clean"]
        )
        if step_kind == "begin" and len(running) < 3:
            overwrites, static = choose.random() < 0.4, choose.random() < 0.5
            situation.begin(
                f"w{step}",
                overwrites=overwrites,
                static=static,
                writes_back=(hive or flink) and choose.random() < 0.5,
                points_back=flink and choose.random() < 0.5,
            )
        elif step_kind == "writer" and running:
            continue_writer(situation, choose.choice(running))
        elif step_kind == "plan":
            situation.plan()
        elif step_kind == "sweep":
            situation.sweep()
        elif step_kind == "clean" and choose.random() < 0.2:
            situation.clean()
    while running := [one for one in situation.writers if one.ended is None]:
        situation.now += 1
        continue_writer(situation, choose.choice(running))
    for _ in range(4):
        situation.now += 1
        situation.sweep()
    return situation


def continue_writer(situation: Situation, writer: Writer) -> None:
    if writer.wrote is None:
        situation.write(writer)
    else:
        situation.end(writer)


def check(situation: Situation) -> None:
    rows, overwrites = situation.visible(), [one for one in situation.writers if one.overwrites]
    assert len(rows) == len(set(rows)), "no row twice"
    if not overwrites:
        assert "base" in rows
    for one in situation.writers:
        assert one.ended is not None
        others = [other for other in overwrites if other is not one]
        if not any(other.ended > one.began for other in others):
            assert one.row in rows, f"no overwrite ended after {one.row} began"
        if any(other.began > one.ended and is_order_visible(situation, one, other) for other in others):
            assert one.row not in rows, f"{one.row} had ended before an overwrite began"


def is_order_visible(situation: Situation, before: Writer, overwrite: Writer) -> bool:
    """Return True if each other file beside that of ``overwrite`` was written after ``before`` had ended.

    Otherwise the files do not show which of them replaced the others, and rows are kept rather than lost.
    """
    beside = [
        one for one in situation.writers if one not in (before, overwrite) and int(one.ended or 0) > overwrite.began
    ]
    # After an entry was written back, an overwrite may meet a copied file, which is newer than its rows.
    return not any(one.writes_back or one.points_back for one in situation.writers) and all(
        int(one.wrote or 0) > int(before.ended or 0) for one in beside
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["dynamic", "spark", "hive", "flink"])
@pytest.mark.parametrize("part", range(4))
def test_the_visible_rows_at_the_end_are_those_of_a_serial_order(part: int, engine: str):
    settled = copied = relocated_back = 0
    for seed in range(part * 2_000, (part + 1) * 2_000):
        situation = run(seed, nested=engine == "spark", hive=engine == "hive", flink=engine == "flink")
        stored = {row for files in situation.locations.values() for file in files for row in situation.rows[file.path]}
        if situation.is_halted or not situation.is_unchanged():
            assert set(situation.visible()) <= stored
            continue
        settled += 1
        copied += bool(situation.late_copies)
        relocated_back += situation.latest is not None and situation.location == "original"
        try:
            check(situation)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}; {situation.visible()}\n{situation.writers}") from error
    assert min(settled, copied, relocated_back) > 20, (settled, copied, relocated_back)
