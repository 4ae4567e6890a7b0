# SPDX-License-Identifier: Apache-2.0
"""What holds for every simulated writer, whatever it is given, and what a scenario may not say."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.writers.model import FileAction, Operation, SimulationError, distribute
from planner.writers.scenario import parse_batch_words, parse_csv, parse_scenario, parse_toml
from planner.writers.simulation import Simulation, WriterKind, simulate

KIB = 1 << 10
#: small enough that a few thousand rows make several files, none so small that rows do not fit
SETTINGS = {
    "hudi": {
        "hoodie.parquet.max.file.size": 120 * KIB,
        "hoodie.parquet.small.file.limit": 100 * KIB,
        "hoodie.copyonwrite.record.size.estimate": 100,
    },
    "mor": {
        "hoodie.logfile.max.size": 20 * KIB,
        "hoodie.logfile.data.block.max.size": 8 * KIB,
        "hoodie.compact.inline.max.delta.commits": 3,
    },
    "hive": {"dfs.blocksize": 64 * KIB, "spark.hive.automerge.block.percent": 0.25},
}
amounts = st.integers(1, 6_000)
partitions = st.sampled_from(["", "dt=1", "dt=2"])
inserts = st.fixed_dictionaries({"operation": st.just("insert"), "partition": partitions, "rows": amounts})


def run(writer: str, batches: list[dict[str, Any]], row_bytes: float = 100, **settings: Any) -> Simulation:
    own = SETTINGS["hive"] if writer == "hive" else SETTINGS["hudi"] | (SETTINGS["mor"] if writer == "hudi-mor" else {})
    return simulate(
        parse_scenario({"writer": writer, "row_bytes": row_bytes, "settings": own | settings, "batches": batches})
    )


@given(st.sampled_from(list(WriterKind)), st.lists(inserts, min_size=1, max_size=8), st.sampled_from([40, 100, 320]))
def test_after_inserts_every_row_and_byte_is_in_exactly_one_file(writer, batches, row_bytes):
    found = run(writer, batches, row_bytes)
    for step in found.steps:
        brought = [write for one in found.steps[: step.number] for write in one.batch.writes]
        assert sum(file.rows + file.uncompacted_rows for file in step.files) == sum(write.rows for write in brought)
        assert sum(file.bytes + file.uncompacted_bytes for file in step.files) == sum(write.bytes for write in brought)
        assert len({file.number for file in step.files}) == len(step.files)


@given(st.lists(inserts, min_size=1, max_size=8))
def test_a_copy_on_write_insert_that_makes_a_file_leaves_at_most_one_small_one_behind(batches):
    found = run("hudi-cow", batches)
    for step in found.steps:
        for partition in {c.file.partition for c in step.changes if c.action is FileAction.CREATED}:
            sizes = [file.bytes for file in step.files if file.partition == partition]
            assert sum(size < found.small_file_limit_bytes for size in sizes) <= 1
            # a row more, since the rows of a new file are rounded up
            assert max(sizes) <= found.target_bytes + 100


@given(st.lists(inserts, min_size=1, max_size=8), st.sampled_from([40, 100, 320, 900]))
def test_no_file_is_far_above_its_maximum_for_any_estimate_of_a_row(batches, row_bytes):
    for step in run("hudi-cow", batches, row_bytes).steps:
        for change in step.changes:
            if change.action is FileAction.CREATED:
                assert change.file.bytes <= 1.1 * 120 * KIB


@given(st.lists(inserts, min_size=1, max_size=8))
def test_a_small_file_limit_of_zero_rewrites_nothing(batches):
    found = run("hudi-cow", batches, **{"hoodie.parquet.small.file.limit": 0})
    assert {change.action for step in found.steps for change in step.changes} == {FileAction.CREATED}


@given(st.lists(st.tuples(partitions, amounts, amounts), min_size=1, max_size=8), st.sampled_from(["bloom", "hbase"]))
def test_a_merge_on_read_table_has_no_logs_after_each_compaction_and_keeps_its_rows(batches, index):
    """Each batch inserts and updates at once, after one that puts rows into every partition."""
    first = [{"operation": "insert", "partitions": ["", "dt=1", "dt=2"], "rows": 500}]
    mixed = [
        {"writes": [{"operation": kind, "partition": p, "rows": n} for kind, n in (("insert", new), ("update", old))]}
        for p, new, old in batches
    ]
    found = run("hudi-mor", first + mixed, **{"hoodie.index.type": index})
    rows = 0
    for step in found.steps:
        rows += sum(write.rows for write in step.batch.writes if write.operation is Operation.INSERT)
        assert sum(file.rows + file.uncompacted_rows for file in step.files) == rows
        for file in step.files:
            assert all(log <= 24 * KIB for log in file.log_sizes)  # three blocks of 8 KiB pass 20 KiB
        if any(change.action is FileAction.COMPACTED for change in step.changes):
            assert not any(file.log_sizes for file in step.files)


@given(
    st.lists(inserts, min_size=1, max_size=6),
    st.integers(1, 40),
    st.sampled_from([2, 3, 10]),
    st.booleans(),
)
def test_auto_merge_never_makes_more_files_and_leaves_fewer_than_its_least_alone(batches, tasks, least, shuffle):
    plain = run("hive", [batch | {"tasks": tasks} for batch in batches], **{"spark.hive.automerge.enabled": False})
    settings = {"spark.hive.automerge.least.filenum": least, "spark.hive.automerge.shuffle.enabled": shuffle}
    merged = run("hive", [batch | {"tasks": tasks} for batch in batches], **settings)
    for alone, together in zip(plain.steps, merged.steps, strict=True):
        assert len(together.changes) <= len(alone.changes)
        if len(alone.changes) < least:
            assert [change.file.rows for change in together.changes] == [change.file.rows for change in alone.changes]


def test_coalesce_joins_neighbours_and_repartition_deals_rows_out():
    batch = [{"operation": "insert", "rows": 1000, "row_bytes": 49.152, "tasks": 4}]
    assert [file.rows for file in run("hive", batch).steps[0].files] == [250, 250, 500]
    shuffled = run("hive", batch, **{"spark.hive.automerge.shuffle.enabled": "true"})
    assert [file.rows for file in shuffled.steps[0].files] == [333, 333, 334]


def test_an_overwrite_replaces_its_partition_and_no_other():
    batches = [
        {"operation": "insert", "partitions": ["a", "b"], "rows": 2000},
        {"operation": "overwrite", "partition": "a", "rows": 10},
    ]
    for writer in WriterKind:
        found = run(writer, batches, **({"spark.sql.shuffle.partitions": 3} if writer == "hive" else {}))
        assert sum(file.rows for file in found.steps[1].files if file.partition == "a") == 10
        assert sum(file.rows for file in found.steps[1].files if file.partition == "b") == 2000


def test_an_update_of_copy_on_write_rewrites_the_files_its_rows_are_in():
    batches = [{"operation": "insert", "rows": 6000}, {"operation": "update", "rows": 2}]
    found = run("hudi-cow", batches)
    assert [file.bytes for file in found.steps[1].files] == [file.bytes for file in found.steps[0].files]
    assert len(found.steps[1].changes) == 2
    assert found.steps[1].written_bytes > 100 * found.steps[1].incoming_bytes


def test_rows_of_a_hive_file_are_bounded_by_spark():
    found = run("hive", [{"operation": "insert", "rows": 10, "tasks": 1}], **{"spark.sql.files.maxRecordsPerFile": 4})
    assert [file.rows for file in found.steps[0].files] == [10]  # merged again
    off = {"spark.sql.files.maxRecordsPerFile": 4, "spark.hive.automerge.enabled": False}
    assert [f.rows for f in run("hive", [{"operation": "insert", "rows": 10, "tasks": 1}], **off).steps[0].files] == [
        4,
        4,
        2,
    ]


@given(st.integers(0, 10_000), st.lists(st.integers(0, 1_000), min_size=1, max_size=20).filter(any))
def test_shares_add_up_and_none_is_a_whole_one_off(count, weights):
    shares = distribute(count, weights)
    assert sum(shares) == count
    assert all(abs(share - count * weight / sum(weights)) < 1 for share, weight in zip(shares, weights, strict=True))


def test_toml_csv_and_options_give_the_same_scenario():
    toml = parse_toml('writer = "hudi-cow"\n[[batches]]\noperation = "insert"\nbytes = "96MB"\n')
    words = {"writer": "hudi-cow", "batches": parse_batch_words(["insert=96MB"])}
    table = {"writer": "hudi-cow"} | parse_csv("operation,bytes\ninsert,96MB\n")
    assert parse_scenario(toml) == parse_scenario(words) == parse_scenario(table)


def test_lines_of_csv_with_one_number_are_one_commit():
    text = "batch,operation,partition,rows,tasks\n1,insert,a,5,2\n1,insert,b,6,\n2,update,a,1,\n"
    first, second = parse_scenario({"writer": "hudi-mor"} | parse_csv(text)).batches
    assert [(write.partition, write.rows) for write in first.writes] == [("a", 5), ("b", 6)]
    assert (first.tasks, second.tasks) == (2, None)
    assert [write.operation for write in second.writes] == [Operation.UPDATE]


def test_a_batch_is_repeated_and_bare_words_are_rows():
    document = {"writer": "hive", "batches": [{"operation": "insert", "rows": 7, "repeat": 30}]}
    assert len(parse_scenario(document).batches) == 30
    (batch,) = parse_scenario({"writer": "hive", "batches": parse_batch_words(["insert=577564"])}).batches
    assert batch.writes[0].rows == 577_564


INSERT = {"operation": "insert", "rows": 5}
REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"batches": [INSERT]}, ["writer is required", "hudi-cow"]),
    ({"writer": "delta", "batches": [INSERT]}, ["'delta'", "hudi-mor"]),
    ({"writer": "hive"}, ["no batch"]),
    ({"writer": "hive", "batches": [{}]}, ["batch 1", "no operation"]),
    ({"writer": "hive", "batches": [{"operation": "insert"}]}, ["batch 1", "neither rows nor bytes"]),
    ({"writer": "hive", "batches": [INSERT | {"row": 5}]}, ["batch 1", "'row'", "row_bytes"]),
    ({"writer": "hive", "batches": [INSERT | {"bytes": 5, "row_bytes": 1}]}, ["two of them"]),
    ({"writer": "hive", "batches": [INSERT | {"rows": 0}]}, ["no rows"]),
    ({"writer": "hive", "batches": [INSERT | {"rows": "x"}]}, ["batch 1: rows", "whole number"]),
    ({"writer": "hive", "batches": [INSERT | {"tasks": 0}]}, ["tasks", "at least 1"]),
    ({"writer": "hive", "batches": [INSERT | {"repeat": 0}]}, ["repeat"]),
    ({"writer": "hive", "batches": [INSERT | {"partition": "a", "partitions": ["b"]}]}, ["partitions"]),
    ({"writer": "hive", "batches": {"operation": "insert"}}, ["[[batches]]"]),
    ({"writer": "hive", "batches": [INSERT], "settings": []}, ["settings"]),
    ({"writer": "hive", "batches": [{"operation": "update", "rows": 1}]}, ["batch 1", "update", "overwrite"]),
    ({"writer": "hudi-cow", "batches": [{"operation": "update", "rows": 1}]}, ["batch 1", "insert some first"]),
    ({"writer": "hudi-cow", "batches": [{"writes": [INSERT, INSERT | {"operation": "overwrite"}]}]}, ["one batch"]),
    (
        {"writer": "hudi-cow", "batches": [INSERT], "settings": {"hoodie.parquet.max.file.sise": 5}},
        ["hoodie.parquet.max.file.sise", "did you mean hoodie.parquet.max.file.size"],
    ),
    (
        {"writer": "hudi-cow", "batches": [INSERT], "settings": {"hoodie.parquet.max.file.size": 0}},
        ["hoodie.parquet.max.file.size", "above 0"],
    ),
    (
        {"writer": "hudi-cow", "batches": [INSERT], "settings": {"hoodie.parquet.small.file.limit": "-1"}},
        ["hoodie.parquet.small.file.limit"],
    ),
    ({"writer": "hudi-mor", "batches": [INSERT], "settings": {"hoodie.index.type": "BUCKET"}}, ["hoodie.index.type"]),
    ({"writer": "hive", "batches": [INSERT | {"rows": 10**9, "tasks": 10**9}]}, ["200,000 files"]),
    (
        {"writer": "hudi-cow", "batches": [INSERT | {"rows": 10**9}], "settings": {"hoodie.parquet.max.file.size": 1}},
        ["200,000 files"],
    ),
    ({"writer": "hive", "batches": [INSERT | {"rows": 200, "repeat": 10_000}]}, ["200,000 files"]),
    ({"writer": "hive", "batches": [INSERT | {"repeat": 10_000}] * 10_000}, ["more than 10,000 batches"]),
]


@pytest.mark.parametrize(("document", "words"), REFUSED)
def test_a_scenario_that_can_not_be_simulated_is_refused_in_one_line_with_the_reason(document, words):
    with pytest.raises(SimulationError) as refusal:
        simulate(parse_scenario(document))
    text = str(refusal.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


def test_a_file_that_is_no_scenario_is_refused():
    for read, text, word in (
        (parse_toml, "writer = ", "TOML"),
        (parse_csv, "operation,size\ninsert,5\n", "'size'"),
        (parse_csv, "", "no columns"),
        (parse_csv, "operation,rows\ninsert,5,6\n", "line 2"),
    ):
        with pytest.raises(SimulationError, match=word):
            read(text)
    with pytest.raises(SimulationError, match="'insert' is not a batch"):
        parse_batch_words(["insert"])
