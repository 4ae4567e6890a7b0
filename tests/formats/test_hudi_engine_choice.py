# SPDX-License-Identifier: Apache-2.0
"""Which engine a plan gets, from the plan's settings and from the footers of its inputs."""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_templates import ref

from lake.errors import Rejected
from lake.formats.hudi.client.write_options import plan_options
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.inputs.footers import read_footers
from lake.formats.hudi.inputs.plan_engine import (
    HEALTHY_ROW_GROUP_BYTES,
    EngineChoice,
    choose_engine,
    columns_read_as_text,
)
from lake.formats.hudi.timeline.timeline import SORT_COLUMNS
from lake.model import FileSlice
from lake.plan import ClusteringGroup, Plan, PlanKind, RewriteOptions

MIB = 1 << 20
COPY = EngineChoice(name="stitch", reason="one schema and healthy row groups in all inputs")


def values(size: int, name: str = "v", nullable: bool = True) -> pa.Table:
    """One column of ``size`` bytes that no compression makes smaller."""
    numbers = np.random.default_rng(1).integers(0, 1 << 62, size // 8)
    return pa.table([pa.array(numbers)], schema=pa.schema([pa.field(name, pa.int64(), nullable=nullable)]))


class Lake:
    """Parquet files of one table without a timeline: all that the choice looks at."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.slices: list[FileSlice] = []

    def add(self, table: pa.Table, row_groups: int = 1, **metadata: str) -> None:
        name = f"{len(self.slices)}.parquet"
        table = table.replace_schema_metadata(metadata or None)
        pq.write_table(table, self.base / name, row_group_size=len(table) // row_groups, use_dictionary=False)
        size = (self.base / name).stat().st_size
        self.slices.append(FileSlice(partition="", file_id=str(len(self.slices)), path=name, bytes=size))

    def choose(
        self,
        *,
        outputs: int = 1,
        merge_on_read: bool = False,
        can_copy: bool = True,
        as_text: Collection[str] = (),
        kind: PlanKind = PlanKind.CLUSTERING,
        obstacles: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> EngineChoice:
        group = ClusteringGroup(partition="", slices=tuple(self.slices), output_files=outputs)
        plan = Plan(
            plan_id="0198",
            table=ref(self.base),
            kind=kind,
            groups=(group,),
            options=RewriteOptions(**{"target_file_max_bytes": 64 * MIB, **options}),
            snapshot_instant="1",
        )
        storage = TableStorage(str(self.base))
        return choose_engine(
            plan,
            lambda: {footer.path: footer for footer in read_footers(storage, [one.path for one in self.slices])},
            merge_on_read=merge_on_read,
            can_copy=can_copy,
            text_columns=as_text,
            find_obstacle=obstacles.get,
        )


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two files that may be copied."""
    made = Lake(tmp_path)
    made.add(values(HEALTHY_ROW_GROUP_BYTES + MIB))
    made.add(values(HEALTHY_ROW_GROUP_BYTES + MIB))
    return made


def test_files_of_one_schema_with_healthy_row_groups_are_copied(lake: Lake) -> None:
    assert lake.choose() == COPY
    assert lake.choose(engine="stitch") == EngineChoice(name="stitch", reason="as set")
    assert str(lake.choose(engine="spark")) == "engine spark: as set"


@pytest.mark.parametrize(
    ("settings", "obstacle"),
    [
        ({"can_copy": False}, "this Hudi bundle has no copy; use bundle 1.1 or newer"),
        ({"merge_on_read": True}, "Hudi copies files of copy-on-write tables only, this one is merge-on-read"),
        ({"sort_columns": ("v",)}, "a copy can't sort by v; unset sort_columns"),
        ({"compression": "zstd"}, "a copy can't change the compression to zstd; unset compression"),
        ({"outputs": 2}, "group 0 is planned as 2 (10.0 MiB); set max_bytes_per_group to target_file_max"),
        ({"target_file_max_bytes": 8 * MIB}, "set max_bytes_per_group to target_file_max"),
    ],
)
def test_the_setting_that_prevents_a_copy_is_named(lake: Lake, settings: dict[str, Any], obstacle: str) -> None:
    chosen = lake.choose(**settings)
    assert not chosen.is_copy
    assert str(chosen).startswith("engine hybrid: no copy, ")
    assert obstacle in chosen.reason
    with pytest.raises(Rejected) as refused:
        lake.choose(engine="stitch", **settings)
    assert str(refused.value).startswith("t: engine = stitch can't rewrite this plan: ")
    assert obstacle in str(refused.value)


@pytest.mark.parametrize(
    ("other", "bloom", "obstacle"),
    [
        (values(8 * MIB, name="w"), {}, "2.parquet has another schema than 0.parquet"),
        (values(8 * MIB, nullable=False), {}, "2.parquet has another schema than 0.parquet"),
        (
            values(8 * MIB),
            {"hoodie_bloom_filter_type_code": "DYNAMIC_V0", "org.apache.hudi.bloomfilter": "…"},
            "2.parquet has a bloom filter of another type (DYNAMIC_V0, 0.parquet has none)",
        ),
    ],
)
def test_files_that_differ_are_not_copied(lake: Lake, other: pa.Table, bloom: dict[str, str], obstacle: str) -> None:
    lake.add(other, **bloom)
    assert lake.choose() == EngineChoice(name="hybrid", reason=f"no copy, {obstacle}")
    with pytest.raises(Rejected) as refused:
        lake.choose(engine="stitch")
    assert obstacle in str(refused.value)


def test_small_row_groups_are_rewritten_unless_a_copy_is_configured(lake: Lake) -> None:
    lake.add(values(10 * MIB), row_groups=10)
    assert lake.choose().reason == (
        "no copy, row groups of group 0 average 1.7 MiB, so a copy would keep them too small (needs 4.0 MiB)"
    )
    assert lake.choose(engine="stitch").is_copy


@pytest.mark.parametrize(
    ("settings", "obstacle"),
    [
        ({"engine": "spark"}, "engine = spark is set; set engine = auto"),
        ({"engine": "hybrid"}, "engine = hybrid is set; set engine = auto"),
        ({"sort_columns": ("v",)}, "a copy can't sort by v; unset sort_columns"),
        ({"kind": PlanKind.COMPACTION}, "logs are merged row by row"),
        ({"kind": PlanKind.COMPACTION, "engine": "spark"}, "logs are merged row by row"),
    ],
)
def test_numbers_in_a_column_that_is_text_now_are_copied_or_refused(
    lake: Lake, settings: dict[str, Any], obstacle: str
) -> None:
    lake.add(values(10 * MIB), row_groups=10)
    kept = (
        "0.parquet has numbers in partition column v, which is text in the table's schema, and only a copy keeps them"
    )
    assert lake.choose(as_text=["v"]) == EngineChoice(name="stitch", reason=kept)
    with pytest.raises(Rejected) as refused:
        lake.choose(as_text=["v"], **settings)
    assert str(refused.value).startswith(f"t: {kept}, but {obstacle}; otherwise recreate the table without ")
    assert not lake.choose(as_text=["w"], **settings).is_copy
    with pytest.raises(
        Rejected, match="and only a copy keeps them, but Hudi copies files of copy-on-write tables only"
    ):
        lake.choose(as_text=["v"], merge_on_read=True)


OLD = {"org.apache.spark.version": "3.5.5", "org.apache.spark.legacyDateTime": ""}
BEFORE = pa.table({"day": pa.array([-141_428, 0], pa.date32()), "at": pa.array([0, None], pa.timestamp("us", "UTC"))})


@pytest.mark.parametrize("told", [OLD, {"org.apache.spark.version": "2.4.8"}])
@pytest.mark.parametrize(
    ("settings", "obstacle"),
    [
        ({"engine": "spark"}, "engine = spark is set; set engine = auto"),
        ({"kind": PlanKind.COMPACTION}, "logs are merged row by row"),
    ],
)
def test_days_that_spark_would_move_into_todays_calendar_are_copied_or_refused(
    tmp_path: Path, told: dict[str, str], settings: dict[str, Any], obstacle: str
) -> None:
    lake = Lake(tmp_path)
    lake.add(BEFORE, **told)
    kept = "0.parquet has dates or timestamps in the hybrid Julian calendar in column day, and only a copy keeps them"
    assert lake.choose() == EngineChoice(name="stitch", reason=kept)
    with pytest.raises(Rejected) as refused:
        lake.choose(**settings)
    assert str(refused.value).startswith(f"t: {kept}, but {obstacle}; otherwise recreate the table in the proleptic ")


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (BEFORE, {}),
        (BEFORE, {"org.apache.spark.version": "3.5.5"}),
        (BEFORE.slice(1), OLD),
        (pa.table({"at": pa.array([None], pa.timestamp("ms", "UTC"))}), OLD),
    ],
)
def test_days_that_no_reader_moves_may_be_written_by_the_row_writer(
    tmp_path: Path, rows: pa.Table, told: dict[str, str]
) -> None:
    lake = Lake(tmp_path)
    lake.add(rows, **told)
    assert not lake.choose(engine="spark").is_copy


@pytest.mark.parametrize("other", [{}, {"org.apache.spark.version": "3.5.5"}, OLD | {"org.apache.spark.timeZone": "X"}])
def test_files_of_two_calendars_are_not_copied_into_one(tmp_path: Path, other: dict[str, str]) -> None:
    lake = Lake(tmp_path)
    lake.add(BEFORE.slice(1), **OLD)
    lake.add(BEFORE.slice(1), **other)
    obstacle = "1.parquet has dates and timestamps of another calendar than 0.parquet, or of another zone"
    assert lake.choose() == EngineChoice(name="hybrid", reason=f"no copy, {obstacle}")
    with pytest.raises(Rejected, match="another calendar"):
        lake.choose(engine="stitch")


@pytest.mark.parametrize(
    ("generator", "kind", "found"),
    [
        ({"hoodie.table.keygenerator.type": "TIMESTAMP"}, "string", {"v"}),
        ({"hoodie.table.keygenerator.class": "org.apache.hudi.keygen.CustomKeyGenerator"}, "string", {"v"}),
        ({"hoodie.table.keygenerator.type": "TIMESTAMP"}, "long", set()),
        ({"hoodie.table.keygenerator.type": "SIMPLE"}, "string", set()),
        ({}, "string", set()),
    ],
)
def test_only_a_key_generator_of_time_stamps_makes_text_of_numbers(
    generator: dict[str, str], kind: str, found: set[str]
) -> None:
    schema = json.dumps({"fields": [{"name": "v", "type": kind}, {"name": "w", "type": "string"}]})
    assert set(columns_read_as_text({"hoodie.table.partition.fields": "v"} | generator, schema)) == found


def test_an_input_that_is_gone_or_damaged_is_left_to_the_step_that_names_it(lake: Lake) -> None:
    lake.slices.append(FileSlice(partition="", file_id="gone", path="gone.parquet", bytes=1))
    (lake.base / "torn.parquet").write_bytes(b"PAR1 torn")
    lake.slices.append(FileSlice(partition="", file_id="torn", path="torn.parquet", bytes=9))
    assert lake.choose() == COPY


@pytest.mark.parametrize("engine", ["hybrid", "arrow"])
def test_an_engine_that_is_set_is_taken_or_its_obstacle_is_named(lake: Lake, engine: str) -> None:
    assert lake.choose(engine=engine) == EngineChoice(name=engine, reason="as set")
    with pytest.raises(Rejected) as refused:
        lake.choose(engine=engine, obstacles={engine: "it is Tuesday"})
    assert str(refused.value) == f"t: engine = {engine} can't rewrite this plan: it is Tuesday; or set engine = auto"
    assert lake.choose(engine=engine, kind=PlanKind.COMPACTION).name == "spark"


def test_hybrid_is_chosen_before_arrow_and_arrow_before_the_row_writer_and_obstacles_are_named(lake: Lake) -> None:
    assert lake.choose(obstacles={"hybrid": "it is Monday", "arrow": "it is Tuesday"}) == COPY
    lake.add(values(10 * MIB), row_groups=10)
    found = "no copy, row groups of group 0 average 1.7 MiB, so a copy would keep them too small (needs 4.0 MiB)"
    for obstacles, told in (
        ({}, f"engine hybrid: {found}"),
        ({"hybrid": "it is Monday"}, f"engine arrow: {found}; hybrid can't: it is Monday"),
        (
            {"hybrid": "it is Monday", "arrow": "it is Tuesday"},
            f"engine spark: {found}; hybrid can't: it is Monday; arrow can't: it is Tuesday",
        ),
        (
            {"hybrid": "it is Monday", "arrow": "it is Monday"},
            f"engine spark: {found}; hybrid and arrow can't: it is Monday",
        ),
    ):
        assert str(lake.choose(obstacles=obstacles)) == told


SCHEMA = json.dumps(
    {
        "fields": [
            {"name": "v", "type": "long"},
            {"name": "s", "type": {"type": "struct", "fields": [{"name": "x", "type": "integer"}]}},
        ]
    }
)


def options_of(*columns: str, layout: str = "linear") -> dict[str, str]:
    """Write settings of a plan with this layout."""
    plan = Plan(
        plan_id="0198",
        table=ref("/lake/t"),
        kind=PlanKind.CLUSTERING,
        groups=(),
        options=RewriteOptions(target_file_max_bytes=MIB, sort_columns=columns, layout=layout),
        snapshot_instant="1",
    )
    return plan_options(plan, replace(COPY, name="spark"), SCHEMA)


@pytest.mark.slow
def test_a_curve_through_one_column_is_a_sort() -> None:
    assert options_of("v", layout="hilbert") == options_of("v")
    assert options_of("v")[SORT_COLUMNS] == "v"


@pytest.mark.parametrize(
    ("columns", "layout", "complaint"),
    [
        (("w",), "linear", "sort_columns names 'w', the table has v, s; set sort_columns"),
        (("s",), "linear", "sort_columns names 's', a struct, which no layout supports"),
        (("v", "s.x"), "zorder", "sort_columns names 's.x', the table has v, s; set sort_columns"),
    ],
)
def test_a_column_that_no_file_can_be_laid_out_by_is_refused(
    columns: tuple[str, ...], layout: str, complaint: str
) -> None:
    with pytest.raises(Rejected) as refused:
        options_of(*columns, layout=layout)
    assert complaint in str(refused.value)
    assert options_of("s.x")[SORT_COLUMNS] == "s.x"
