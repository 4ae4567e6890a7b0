# SPDX-License-Identifier: Apache-2.0
"""The real writers make the files that their models say: batches of the documents, at a tenth of their size."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hive_metastore import MetastoreServer
from hudi_tables import write

from planner.writers.model import Operation, SimulationStep
from planner.writers.scenario import parse_scenario, parse_toml
from planner.writers.simulation import simulate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

SCENARIOS = Path(__file__).parents[2] / "docs" / "scenarios"
MIB = 1 << 20
#: rows that are as large in every file: what compresses or repeats would depend on what else is in it
PLAIN = {"hoodie.parquet.compression.codec": "uncompressed", "hoodie.parquet.dictionary.enabled": "false"}
TENTH = {"hoodie.parquet.max.file.size": 12 * MIB, "hoodie.parquet.small.file.limit": 10 * MIB}
#: blocks of a log are measured by rows in memory: small ones differ from that by little in all
LOGS = {
    "hoodie.logfile.max.size": 25 * MIB,
    "hoodie.logfile.data.block.max.size": MIB // 4,
    "hoodie.compact.inline": "true",
    "hoodie.compact.inline.max.delta.commits": 3,
}
#: letters of an updated row, so that all updates are three times what the rows were
_WIDE = 12

Slices = list[tuple[int, list[int]]]


def frame(spark: "SparkSession", low: int, high: int, *, version: int = 0, wide: int = 1) -> "DataFrame":
    """Rows with ids ``low`` ≤ id < ``high`` and ``wide`` times 64 letters that nothing compresses."""
    from pyspark.sql import functions as f

    letters = [f.sha2(f.concat_ws("/", "id", f.lit(version), f.lit(part)), 256) for part in range(wide)]
    return spark.range(low, high).select(
        f.format_string("%012d", "id").alias("id"),
        f.lit(version).cast("long").alias("ts"),
        f.lit("2026-01-01").alias("dt"),
        f.concat(*letters).alias("letters"),
    )


def written(base: Path) -> Slices:
    """Bytes of the newest base file of each file group and of its logs, in the order of the groups' first files."""
    groups: dict[str, list[Path]] = {}
    for path in base.glob("dt=*/*.parquet"):
        groups.setdefault(path.name.split("_")[0], []).append(path)
    found = []
    for file_id, versions in groups.items():
        instants = sorted((path.stem.split("_")[2], path) for path in versions)
        newest, base_file = instants[-1]
        logs = [path for path in sorted(base.glob(f"dt=*/.{file_id}*.log.*")) if path.suffix != ".crc"]
        later = [log.stat().st_size for log in logs if log.name.split("_")[1].split(".")[0] > newest]
        found.append((instants[0][0], base_file.stat().st_size, sorted(later, reverse=True)))
    return [(size, logs) for _, size, logs in sorted(found)]


def predicted(step: SimulationStep) -> Slices:
    return [(file.bytes, list(file.log_sizes)) for file in step.files]


def assert_alike(made: Slices, said: Slices) -> None:
    """As many files and logs, each within a tenth; both are printed."""
    print(f"\npredicted {said}\nwritten   {made}")
    assert [len(logs) for _, logs in made] == [len(logs) for _, logs in said]
    for (size, logs), (size_said, logs_said) in zip(made, said, strict=True):
        assert [size, *logs] == pytest.approx([size_said, *logs_said], rel=0.1)


@pytest.fixture(scope="module")
def row_bytes(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> float:
    """Bytes of a row in a file of many."""
    base = tmp_path_factory.mktemp("row") / "table"
    write(frame(spark, 0, 20_000).coalesce(1), base, "bulk_insert", options=PLAIN)
    ((size, _),) = written(base)
    return size / 20_000


def tenth(name: str, row_bytes: float, **settings: Any) -> dict[str, Any]:
    """A shipped scenario with rows of ``row_bytes`` and a tenth of its bytes, the writer's limits too."""
    document = parse_toml((SCENARIOS / f"{name}.toml").read_text())
    own = {"hoodie.copyonwrite.record.size.estimate": round(row_bytes)}
    whole = parse_scenario(document | {"settings": {}})
    return {
        "writer": document["writer"],
        "settings": TENTH | own | settings,
        "batches": [
            {"operation": write.operation, "rows": round(write.bytes / 10 / row_bytes), "row_bytes": row_bytes}
            for batch in whole.batches
            for write in batch.writes
        ],
    }


def options(document: dict[str, Any]) -> dict[str, str]:
    """What the real writer is given."""
    return PLAIN | {key: str(value) for key, value in document["settings"].items()}


@pytest.mark.spark
def test_four_inserts_of_the_notebook_make_the_predicted_files(spark, tmp_path, row_bytes):
    """000_ecc5d2bc7628b643.txt, its copy-on-write table."""
    document = tenth("hudi-cow", row_bytes)
    at = 0
    for step in simulate(parse_scenario(document)).steps:
        (rows,) = [write.rows for write in step.batch.writes]
        write(frame(spark, at, at + rows), tmp_path / "table", "insert", options=options(document), files=2)
        at += rows
        assert_alike(written(tmp_path / "table"), predicted(step))


@pytest.mark.spark
@pytest.mark.shown_by("tests/formats/test_writer_models.py::test_four_inserts_of_the_notebook_make_the_predicted_files")
def test_a_first_insert_with_the_default_estimate_makes_five_small_files_and_the_next_one_fills_three(
    spark, tmp_path, row_bytes
):
    """000_ecc5d2bc7628b643.txt, its table with defaults. Hudi fills small files in the order of their random ids."""
    batches = [{"operation": "insert", "rows": rows} for rows in (57_756, round(33.1e6 / row_bytes))]
    document = {"writer": "hudi-cow", "row_bytes": row_bytes, "settings": TENTH, "batches": batches}
    first, second = simulate(parse_scenario(document)).steps
    write(frame(spark, 0, 57_756), tmp_path / "table", "insert", options=options(document), files=2)
    assert [change.added_rows for change in first.changes] == [12_288] * 4 + [8_604]
    assert_alike(sorted(written(tmp_path / "table")), sorted(predicted(first)))
    more = frame(spark, 57_756, 57_756 + second.batch.writes[0].rows)
    write(more, tmp_path / "table", "insert", options=options(document), files=2)
    made, said = sorted(written(tmp_path / "table")), sorted(predicted(second))
    print(f"\npredicted {said}\nwritten   {made}")
    assert len(made) == len(said) == 5
    assert_alike(made[2:], said[2:])  # the three that were filled
    small = sum(size for size, _ in said[:2])
    assert sum(size for size, _ in made[:2]) == pytest.approx(small, rel=0.1)


@pytest.mark.spark
@pytest.mark.shown_by("tests/planner/test_writer_seeds.py::test_the_numbers_of_a_source_document_are_reproduced")
def test_an_insert_and_three_updates_of_a_merge_on_read_table_make_the_predicted_slices(spark, tmp_path, row_bytes):
    """000_ecc5d2bc7628b643.txt, its merge-on-read table; the size of an updated row in a log is that of the first."""
    base = tmp_path / "table"
    document = tenth("hudi-mor", row_bytes, **LOGS)
    whole = document["batches"][0]["rows"]

    def updated(rows: int, version: int, wide: int = 1) -> Slices:
        changed = frame(spark, 0, rows, version=version, wide=wide)
        write(changed, base, "upsert", options=options(document), merge_on_read=True, files=2)
        return written(base)

    write(frame(spark, 0, whole), base, "insert", options=options(document), merge_on_read=True, files=2)
    made = [written(base), updated(3_000, 1), updated(4_500, 2)]
    log_row = made[1][0][1][0] / 3_000
    made.append(updated(whole, 3, _WIDE))
    wide_row = log_row + 64 * (_WIDE - 1)
    document["batches"][1:] = [
        {"operation": Operation.UPDATE, "rows": 3_000, "row_bytes": log_row},
        {"operation": Operation.UPDATE, "rows": 4_500, "row_bytes": log_row},
        {"operation": Operation.UPDATE, "rows": whole, "row_bytes": wide_row},
    ]
    steps = simulate(parse_scenario(document)).steps
    assert [len(step.files[0].log_sizes) for step in steps] == [0, 1, 0, 2]
    for slices, step in zip(made, steps, strict=True):
        assert_alike(slices, predicted(step))


def test_spark_makes_a_file_a_task_and_partition_of_a_hive_table(metastore: MetastoreServer):
    columns = "(id BIGINT, letters STRING) PARTITIONED BY (dt STRING) STORED AS PARQUET"
    rows = "sha2(CAST(id AS STRING), 256)"
    metastore.spark(
        "SET hive.exec.dynamic.partition.mode=nonstrict",
        f"CREATE EXTERNAL TABLE one {columns} LOCATION '{{place}}/one'",
        f"INSERT INTO one SELECT /*+ REPARTITION(1) */ id, {rows}, 'd0' FROM range(0, 20000)",
        f"CREATE EXTERNAL TABLE tasks {columns} LOCATION '{{place}}/tasks'",
        f"INSERT INTO tasks SELECT /*+ REPARTITION(4) */ id, {rows}, concat('d', id % 3) FROM range(0, 60000)",
        "SET spark.sql.files.maxRecordsPerFile=3000",
        f"INSERT INTO tasks SELECT /*+ REPARTITION(2) */ id, {rows}, 'd9' FROM range(0, 10000)",
        "DROP TABLE tasks",
        "DROP TABLE one",
    )
    (pilot,) = (metastore.place / "one").glob("dt=*/*.parquet")
    batches = [
        {"operation": "insert", "partitions": ["dt=d0", "dt=d1", "dt=d2"], "rows": 20_000, "tasks": 4},
        {"operation": "insert", "partition": "dt=d9", "rows": 10_000, "tasks": 2},
    ]
    document = {
        "writer": "hive",
        "row_bytes": pilot.stat().st_size / 20_000,
        "batches": batches,
        "settings": {"spark.sql.files.maxRecordsPerFile": 5_000},
    }
    several = simulate(parse_scenario(document)).steps[0]
    document["settings"] = {"spark.sql.files.maxRecordsPerFile": 3_000}
    cut = simulate(parse_scenario(document | {"batches": batches[1:]})).steps[0]
    for step in (several, cut):
        for partition in {file.partition for file in step.files}:
            made = [path.stat().st_size for path in (metastore.place / "tasks" / partition).glob("*.parquet")]
            said = [file.bytes for file in step.files if file.partition == partition]
            assert_alike([(size, []) for size in sorted(made)], [(size, []) for size in sorted(said)])
