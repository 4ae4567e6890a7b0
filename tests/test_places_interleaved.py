# SPDX-License-Identifier: Apache-2.0
"""Writers, plans, the sweep and the cleaner in any order on one partition: its rows are those of a serial order.

A writer asks the catalog where the partition is when it begins, and ends there however often the partition has moved.
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
    place: str
    began: int
    token: str | None = None
    wrote: int | None = None
    ended: int | None = None
    #: whether it ends by writing back what it had read of the catalog, as Hive does
    writes_back: bool = False
    #: whether it writes to the directory of its own and points the partition there at its end, as Flink does
    points_back: bool = False


@dataclass
class World:
    """One partition: its catalog, its directories, what the database knows of it.

    Or one table without partitions, whose versions are ``nested`` in its own directory: who empties that removes them.
    """

    nested: bool = False
    now: int = 0
    place: str = "home"
    token: str | None = None
    places: dict[str, dict[LocatedFile, int]] = field(default_factory=lambda: {"home": {}})
    rows: dict[str, tuple[str, ...]] = field(default_factory=dict)
    writers: list[Writer] = field(default_factory=list)
    last: Relocation | None = None
    former: dict[str, PreviousLocation] = field(default_factory=dict)
    carries: list[LateCopy] = field(default_factory=list)
    halted: bool = False
    uprooted: set[str] = field(default_factory=set)
    earlier: set[tuple[str, str | None]] = field(default_factory=set)

    def add(self, place: str, name: str, rows: tuple[str, ...], at: int) -> LocatedFile:
        file = LocatedFile(path=f"{place}/{name}", bytes=1, modified_ms=at)
        self.places[place][file] = self.now
        self.rows[file.path] = rows
        return file

    # Writers.

    def begin(self, row: str, *, overwrites: bool, static: bool, writes_back: bool, points_back: bool) -> None:
        place = "home" if points_back else self.place
        self.writers.append(
            Writer(
                row, overwrites, static, place, self.now, self.token, writes_back=writes_back, points_back=points_back
            )
        )
        if overwrites and static and not self.nested:
            self.places[place].clear()

    def write(self, writer: Writer) -> None:
        writer.wrote = self.now
        # Some time after it has asked where to.
        if writer.overwrites and writer.static and self.nested:
            for place in [writer.place] if writer.place != "home" else self.places:
                self.places[place].clear()
                self.uprooted |= {place} - {writer.place}

    def end(self, writer: Writer) -> None:
        assert writer.wrote is not None
        writer.ended = self.now
        if writer.overwrites and not writer.static:
            self.places[writer.place].clear()
        self.add(writer.place, f"part-{writer.row}", (writer.row,), writer.wrote)
        if writer.writes_back:
            self.place, self.token = writer.place, writer.token
        if writer.points_back:
            self.place = "home"

    # Lakefold.

    def decision(self) -> RelocationDecision:
        assert self.last is not None
        record = RelocatedPartition(
            latest=self.last,
            previous_locations=tuple(self.former.values()),
            late_copies=tuple(self.carries),
            earlier_locations=frozenset(self.earlier),
        )
        places = {
            place: LocationState(files=dict(files), is_tree_removed=place in self.uprooted)
            for place, files in self.places.items()
        }
        return decide(record, PartitionState(location=self.place, token=self.token, locations=places), timedelta())

    def quiet(self) -> bool:
        if self.last is None:
            return True
        decision = self.decision()
        return decision.action is RelocationAction.NOTHING and not decision.superseded_files

    def plan(self) -> None:
        """Rewrite all files into one, at another place."""
        here = self.places[self.place]
        if not here or not self.quiet():
            return
        place = f"v{self.now}"
        self.places[place] = {}
        self.add(place, "compacted", tuple(row for file in here for row in self.rows[file.path]), self.now)
        self.move(place, tuple(here))

    def move(self, place: str, inputs: tuple[LocatedFile, ...]) -> None:
        left = self.last.location if self.last else self.place
        self.earlier.add((left, self.last.token if self.last else None))
        self.place, self.token = place, f"t{self.now}"
        self.last = Relocation(
            partition="p", token=self.token, previous_location=left, location=place, files=tuple(self.places[place])
        )
        self.former.pop(place, None)
        self.former[left] = PreviousLocation(location=left, expected_files=inputs)

    def copy(self, files: tuple[LocatedFile, ...], place: str) -> None:
        for file in files:
            copied = self.add(place, f"carried-{file.path.replace('/', '-')}", self.rows[file.path], file.modified_ms)
            self.carries.append(LateCopy(row_id=0, partition="p", source=file, target=copied.path, is_done=True))

    def expect(self, place: str, files: tuple[LocatedFile, ...]) -> None:
        """What was carried or set aside waits for its deletion; what an overwrite removed is not missed."""
        former = self.former[place]
        kept = (*former.expected_files, *(file for file in files if file.path.startswith(f"{place}/")))
        self.former[place] = PreviousLocation(
            location=place,
            expected_files=tuple(file for file in kept if file in self.places[place]),
            is_cleaning_begun=former.is_cleaning_begun,
            possible_files=former.possible_files,
        )

    def sweep(self) -> None:
        if self.last is None or self.halted:
            return
        decision = self.decision()
        if decision.action is RelocationAction.HALT:
            self.halted = True
        elif decision.action is RelocationAction.RELOCATE_BACK:
            assert decision.target_location is not None
            here = tuple(self.places[self.last.location])
            self.copy(decision.files_to_copy, decision.target_location)
            for place in list(self.former):
                if place != decision.target_location:
                    self.expect(place, (*decision.files_to_copy, *decision.superseded_files))
            self.move(decision.target_location, here)
        elif decision.action is not RelocationAction.WAIT and (
            decision.files_to_copy or decision.superseded_files or decision.action is RelocationAction.REAPPLY
        ):
            self.place, self.token = self.last.location, self.last.token
            self.copy(decision.files_to_copy, self.place)
            for place in list(self.former):
                self.expect(place, (*decision.files_to_copy, *decision.superseded_files))

    def clean(self) -> None:
        if self.last is None or not self.quiet():
            return
        for place, former in list(self.former.items()):
            for file in former.expected_files:
                self.places[place].pop(file, None)
            self.former[place] = PreviousLocation(
                location=place,
                expected_files=(),
                possible_files=(*former.possible_files, *former.expected_files),
                is_cleaning_begun=True,
            )

    def visible(self) -> list[str]:
        return sorted(row for file in self.places[self.place] for row in self.rows[file.path])


def run(seed: int, *, nested: bool, hive: bool, flink: bool) -> World:
    choose, world = random.Random(seed), World(nested=nested)
    world.add("home", "base", ("base",), 0)
    for step in range(choose.randint(6, 22)):
        world.now += 1
        at_work = [one for one in world.writers if one.ended is None]
        what = choose.choice(
            ["begin", "begin", "writer", "writer", "writer", "plan", "plan", "sweep", "sweep", "clean"]
        )
        if what == "begin" and len(at_work) < 3:
            overwrites, static = choose.random() < 0.4, choose.random() < 0.5
            world.begin(
                f"w{step}",
                overwrites=overwrites,
                static=static,
                writes_back=(hive or flink) and choose.random() < 0.5,
                points_back=flink and choose.random() < 0.5,
            )
        elif what == "writer" and at_work:
            go_on(world, choose.choice(at_work))
        elif what == "plan":
            world.plan()
        elif what == "sweep":
            world.sweep()
        elif what == "clean" and choose.random() < 0.2:
            world.clean()
    while at_work := [one for one in world.writers if one.ended is None]:
        world.now += 1
        go_on(world, choose.choice(at_work))
    for _ in range(4):
        world.now += 1
        world.sweep()
    return world


def go_on(world: World, writer: Writer) -> None:
    if writer.wrote is None:
        world.write(writer)
    else:
        world.end(writer)


def check(world: World) -> None:
    rows, overwrites = world.visible(), [one for one in world.writers if one.overwrites]
    assert len(rows) == len(set(rows)), "no row twice"
    if not overwrites:
        assert "base" in rows
    for one in world.writers:
        assert one.ended is not None
        others = [other for other in overwrites if other is not one]
        if not any(other.ended > one.began for other in others):
            assert one.row in rows, f"{one.row} was the last there, or beside appends only"
        if any(other.began > one.ended and alone(world, one, other) for other in others):
            assert one.row not in rows, f"{one.row} had ended before an overwrite began"


def alone(world: World, before: Writer, overwrite: Writer) -> bool:
    """Whether each file that may lie beside that of ``overwrite`` at its end was written after ``before`` had ended.

    Else the files do not tell which of them replaced the others, and rows are kept rather than lost.
    """
    beside = [one for one in world.writers if one not in (before, overwrite) and int(one.ended or 0) > overwrite.began]
    # Where the catalog was written back an overwrite may come upon what was carried, which is younger than its rows.
    return not any(one.writes_back or one.points_back for one in world.writers) and all(
        int(one.wrote or 0) > int(before.ended or 0) for one in beside
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["dynamic", "spark", "hive", "flink"])
@pytest.mark.parametrize("part", range(4))
def test_the_rows_that_are_seen_at_the_end_are_those_of_a_serial_order(part: int, engine: str):
    settled = carried = moved_back = 0
    for seed in range(part * 2_000, (part + 1) * 2_000):
        world = run(seed, nested=engine == "spark", hive=engine == "hive", flink=engine == "flink")
        stored = {row for files in world.places.values() for file in files for row in world.rows[file.path]}
        if world.halted or not world.quiet():
            assert set(world.visible()) <= stored
            continue
        settled += 1
        carried += bool(world.carries)
        moved_back += world.last is not None and world.place == "home"
        try:
            check(world)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}; {world.visible()}\n{world.writers}") from error
    assert min(settled, carried, moved_back) > 20, (settled, carried, moved_back)
