# SPDX-License-Identifier: Apache-2.0
"""``strategy = "hudi"`` against Hudi's own planner: the same settings, on tables that one real writer made."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hudi_scheduler import hudi_groups
from hudi_tables import copy, rows, write
from hudi_templates import ref
from kept_tables import kept
from support import SOAK, record_figure

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.format import HudiFormat
from lake.formats.hudi.timeline.timeline import Timeline, planned_slices
from lake.model import Snapshot
from lake.plan import ClusteringGroup
from planner.policy.policy import SizingPolicy

pytestmark = pytest.mark.spark
TABLES = 24 if SOAK else 6
KEY = "hoodie.clustering.plan.strategy."

Settings = Mapping[str, str]
Group = tuple[list[tuple[str, str, str | None, frozenset[str]]], int]
"""Slices as (partition, file id, base file, logs), and the number of outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A generated table; every third one has logs, every third one slices of logs only too."""

    seed: int

    @property
    def partitions(self) -> int:
        return 1 + self.seed % 4

    @property
    def merge_on_read(self) -> bool:
        return self.seed % 3 != 0

    @property
    def logs_only(self) -> bool:
        return self.seed % 3 == 2

    def build(self, spark: Any, base: Path) -> None:
        """Uneven files in each partition; the ids are no other table's, see ``hudi_writing`` on the in-memory index."""
        start = 1_000_000 * (self.seed + 1)
        counts = [random.Random(self.seed).randint(30, 900) for _ in range(2 + self.seed % 5)]
        edges = [start + sum(counts[:i]) for i in range(len(counts) + 1)]
        frames = [rows(spark, low, high, partitions=self.partitions).coalesce(1) for low, high in pairwise(edges)]
        options = {"hoodie.index.bloom.num_entries": "1000"}
        kind: dict[str, Any] = {"merge_on_read": self.merge_on_read, "options": options}
        write(reduce(lambda one, other: one.union(other), frames), base, files=len(frames), **kind)
        if self.seed % 2:
            late = rows(spark, edges[-1], edges[-1] + 700, version=1, partitions=self.partitions)
            write(late.coalesce(1), base, **kind)
        if self.merge_on_read:
            changed = rows(spark, start, edges[1], version=2, partitions=self.partitions).where("id % 5 = 0")
            write(changed.coalesce(1), base, "upsert", **kind)
        if self.logs_only:
            fresh = rows(spark, start + 500_000, start + 500_090, partitions=self.partitions)
            write(fresh, base, "upsert", merge_on_read=True, options=options | {"hoodie.index.type": "INMEMORY"})


def sizes_of(snapshot: Snapshot) -> list[int]:
    """Bytes of all base files, largest first."""
    return sorted((size for size in snapshot.slices["bytes"].to_pylist() if size), reverse=True)


def limits(small: int, group: int, target: int | None = None, **more: Any) -> dict[str, str]:
    """The three sizes of Hudi's planner."""
    return {
        f"{KEY}small.file.limit": str(small),
        f"{KEY}target.file.max.bytes": str(target or small),
        f"{KEY}max.bytes.per.group": str(group),
        **{f"{KEY}{key}": str(value) for key, value in more.items()},
    }


def exact(snapshot: Snapshot) -> dict[str, str]:
    """The largest file is exactly at the limit, two of the others make exactly a full group."""
    first = snapshot.slices["partition"][0].as_py()
    mine = sorted(
        (r["bytes"] for r in snapshot.slices.to_pylist() if r["partition"] == first and r["path"]), reverse=True
    )
    small = sizes_of(snapshot)[0]
    below = [size for size in mine if size < small]
    return limits(small, max(small, sum(below[:2])))


def tight(snapshot: Snapshot) -> dict[str, str]:
    """Every file a group of its own, and more of them than a plan may have."""
    largest = sizes_of(snapshot)[0]
    return limits(largest + 1, largest + 1, **{"max.num.groups": 3})


def wide(snapshot: Snapshot) -> dict[str, str]:
    """One group a partition, of several outputs."""
    sizes = sizes_of(snapshot)
    return limits(sizes[0] + 1, 1 << 30, sizes[0] + sizes[-1])


def lonely(snapshot: Snapshot) -> dict[str, str]:
    """Few files below the limit, so that some partitions have one."""
    sizes = sizes_of(snapshot)
    return limits(sizes[len(sizes) // 2] + 1, 2 * sizes[0] + 1)


LIMITS: Sequence[Callable[[Snapshot], dict[str, str]]] = (exact, tight, wide, lonely)
MODE = "hoodie.clustering.plan.partition.filter.mode"
FILTERS: Sequence[Settings] = (
    {},
    {},
    {MODE: "RECENT_DAYS", f"{KEY}daybased.lookback.partitions": "2", f"{KEY}daybased.skipfromlatest.partitions": "1"},
    {
        MODE: "SELECTED_PARTITIONS",
        f"{KEY}cluster.begin.partition": "dt=2026-01-02",
        f"{KEY}cluster.end.partition": "dt=2026-01-03",
    },
    {f"{KEY}partition.regex.pattern": ".*-0[13]"},
)


def schedule(spark: Any, base: Path, settings: Settings) -> list[Group]:
    """What Hudi's planner wrote into its plan, which is withdrawn again; nothing where it made none."""
    options = {**settings, "hoodie.metadata.enable": "false", "hoodie.table.services.incremental.enabled": "false"}
    session = spark.newSession()
    for key, value in options.items():  # the procedure's own options can hold neither a comma nor an equals sign
        session.conf.set(key, value)
    session.sql(f"CALL run_clustering(path => '{base}', op => 'schedule')").collect()
    timeline = Timeline(TableStorage(str(base)))
    made: list[Group] = []
    for _, plan in timeline.pending_plans():
        for group in plan["clusteringPlan"]["inputGroups"]:
            entries = planned_slices({"clusteringPlan": {"inputGroups": [group]}})
            slices = [(e.partition, e.file_id, e.base, frozenset(e.logs)) for e in entries]
            made.append((slices, group["numOutputFileGroups"]))
    for requested in (base / ".hoodie/timeline").glob("*.clustering.requested"):
        requested.unlink()
        requested.with_name(f".{requested.name}.crc").unlink(missing_ok=True)
    return made


def as_hudi_writes(groups: Sequence[ClusteringGroup]) -> list[Group]:
    """Our groups in the same shape."""
    return [
        (
            [(s.partition, s.file_id, s.path and s.path.rsplit("/", 1)[-1], frozenset(s.log_files)) for s in g.slices],
            g.output_files,
        )
        for g in groups
    ]


def tied_slices(snapshot: Snapshot, policy: SizingPolicy) -> dict[str, tuple[str, int]]:
    """File ids of slices that count as large as another of their partition, with what they have in common."""
    counted = {
        row["file_id"]: (row["partition"], row["bytes"] if row["path"] else policy.log_only_slice_size_bytes)
        for row in snapshot.slices.to_pylist()
    }
    often = Counter(counted.values())
    return {file_id: what for file_id, what in counted.items() if often[what] > 1}


def untied(groups: Sequence[Group], tied: Mapping[str, tuple[str, int]]) -> list[tuple[list[object], int]]:
    """``groups`` with equally large slices as one: which of them comes first is up to a hash table of Hudi's."""
    return [([tied.get(slice_[1], slice_) for slice_ in slices], outputs) for slices, outputs in groups]


@pytest.mark.soak
def test_our_groups_before_the_convergence_rule_are_those_of_hudis_planner_on_every_table(
    spark: Any, tmp_path: Path
) -> None:
    covered: set[str] = set()
    for seed in range(TABLES):
        built = kept(f"parity {seed}", "trips", partial(Shape(seed=seed).build, spark), __file__)
        base = copy(built, tmp_path / f"table{seed}")
        snapshot = HudiFormat().snapshot(ref(base))
        for round_ in range(2):
            single_groups = (seed // 2 + round_) % 2 == 0
            settings = {
                **LIMITS[(seed + 2 * round_) % len(LIMITS)](snapshot),
                **FILTERS[(seed + round_) % len(FILTERS)],
                f"{KEY}file.slices.sort.by": ("SIZE", "INSTANT_TIME,SIZE")[(seed + round_) % 2],
                f"{KEY}single.group.clustering.enabled": str(single_groups).lower(),
                # what a log-only slice counts as: no file has this size
                "hoodie.parquet.max.file.size": str(sizes_of(snapshot)[len(snapshot.slices) // 3] + 1),
            }
            policy = SizingPolicy.from_settings({"strategy": "hudi", "quiet_period": 0, **settings})
            now = datetime.now(UTC)
            ours = hudi_groups(snapshot, policy, now=now, single_groups=single_groups)
            theirs = schedule(spark, base, settings)
            tied = tied_slices(snapshot, policy)
            assert untied(as_hudi_writes(ours), tied) == untied(theirs, tied), (seed, settings)
            covered |= features(ours, snapshot, policy)
            if len(hudi_groups(snapshot, policy, now=now)) > len(ours):
                covered.add("one to one left out")
    assert covered >= {
        "several outputs",
        "one to one",
        "one to one left out",
        "logs",
        "logs only",
        "all groups a plan may have",
        "exactly a full group",
        "a file exactly at the limit",
        "several groups in a partition",
    }
    record_figure("groups of Hudi's planner and ours", f"the same on {TABLES} generated tables, two settings each")


def features(groups: Sequence[ClusteringGroup], snapshot: Snapshot, policy: SizingPolicy) -> set[str]:
    """Which of the cases worth comparing a plan has in it."""
    bases = [sum(s.bytes for s in g.slices) for g in groups]
    found = {
        "several outputs": any(g.output_files > 1 for g in groups),
        "one to one": any(len(g.slices) == g.output_files == 1 for g in groups),
        "logs": any(s.path and s.log_files for g in groups for s in g.slices),
        "logs only": any(s.path is None for g in groups for s in g.slices),
        "all groups a plan may have": len(groups) == policy.max_num_groups,
        "exactly a full group": any(size == policy.max_bytes_per_group for size in bases),
        "a file exactly at the limit": policy.small_file_limit_bytes in snapshot.slices["bytes"].to_pylist(),
        "several groups in a partition": len(groups) > len({g.partition for g in groups}),
    }
    return {name for name, holds in found.items() if holds}
