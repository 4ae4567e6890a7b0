# SPDX-License-Identifier: Apache-2.0
"""Hive tables without partitions, which a commit moves as a whole: what is refused, and writers that spanned a move."""

import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from contract.attempts import attempt, found_again, run
from contract.plans import plan_all
from hive_case import DATABASE, Owner, WholeCase, table_name, uri
from hive_metastore import MetastoreServer
from late_writing import brought_home, halted, killed_before_it_records, overwrite, resolved, swept, write
from toys.bench import Bench
from toys.files import rows, told
from waiting import wait_for

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from lake.errors import Conflict, Integrity
from lake.formats.hive.directories import directory_index
from lake.metastore import MetastoreClient, MetastoreTable
from lake.model import CatalogRef, TableRef
from lake.relocation.decide import LocationChoice

pytestmark = [pytest.mark.slow, pytest.mark.paired("case")]


@pytest.fixture(params=[False, True], ids=["by Hive", "by Spark"])
def case(metastore: MetastoreServer, request: pytest.FixtureRequest) -> WholeCase:
    return WholeCase(uri=metastore.uri, by_spark=request.param)


def own(bench: Bench) -> Path:
    return Path(bench.table.location)


def here(bench: Bench) -> Path:
    return bench.case.places(bench.table)[""]  # type: ignore[attr-defined]


def found(bench: Bench) -> MetastoreTable:
    return bench.case.partitions(bench.table)[""]  # type: ignore[attr-defined]


def overwrite_by_spark(place: Path) -> list[str]:
    """What a session does that goes on with the directory it knows: nothing is left in there."""
    return overwrite(place, 500, 520)


def overwrite_by_hive(place: Path) -> list[str]:
    """What is hidden stays."""
    for path in place.glob("*.parquet"):
        path.unlink()
    return write(place, 500, 520, "part-anew.parquet")


def set_back(case: WholeCase, table: TableRef, unset: str = "lakefold.") -> None:
    """What ``ALTER TABLE … SET LOCATION`` and ``UNSET TBLPROPERTIES`` do."""
    before, place = case.partitions(table)[""], uri(Path(table.location))
    assert isinstance(before, MetastoreTable)
    kept = {name: value for name, value in before.parameters.items() if not name.startswith(unset)}
    storage = before.storage.with_location(place)
    if storage.spark_path is not None:
        storage = storage.with_spark_path(place)
    with Owner(case.uri) as owner:
        MetastoreClient.alter_table(owner, DATABASE, table_name(table), before.with_changes(storage, kept))


def test_rule_2_a_late_append_is_copied_once_and_its_file_waits_for_its_deletion(bench: Bench):
    before, place = bench.rows(), here(bench)
    late = write(own(bench), 900, 910)
    assert swept(bench).copied == 1
    assert (bench.rows(), here(bench), swept(bench)) == (sorted([*before, *late]), place, SweepReport())
    files = [path.stat().st_size for path in place.iterdir()]
    counts = found(bench).parameters
    assert (int(counts["numFiles"]), int(counts["totalSize"])) == (len(files), sum(files))
    bench.clean()
    assert (list(own(bench).glob("*.parquet")), bench.rows()) == ([], sorted([*before, *late]))


@pytest.mark.parametrize("overwrite", [overwrite_by_spark, overwrite_by_hive])
def test_rule_2_an_overwrite_during_the_move_moves_the_table_back_with_later_files(bench: Bench, overwrite: Any):
    first = here(bench)
    bench.case.append(bench.table, "", 800, 810)
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    anew = overwrite(own(bench))
    assert (swept(bench).relocated_back, here(bench), bench.rows()) == (1, own(bench), sorted(anew))
    assert swept(bench) == SweepReport()
    bench.clean()
    assert (bench.rows(), halted(bench), first.exists()) == (sorted(anew), None, False)
    bench.case.append(bench.table, "", 800, 810)
    expected = bench.rows()
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    late = write(own(bench), 900, 910)
    assert (swept(bench).copied, bench.rows()) == (1, sorted([*expected, *late]))


def test_rule_2_files_written_after_an_overwrite_removed_all_versions_halt_the_table_and_both_stay(bench: Bench):
    """It may have been added to that overwrite's rows, or have replaced them."""
    place = here(bench)
    shutil.rmtree(own(bench))
    own(bench).mkdir()
    assert (swept(bench).waiting, bench.rows()) == (1, [])
    pq.write_table(rows(500, 520), own(bench) / "part-anew.parquet")
    newest = (own(bench) / "part-anew.parquet").stat().st_ctime_ns // 1_000_000
    wait_for(lambda: time.time_ns() // 1_000_000 > newest + 20, "time stands still", every=0.005)
    place.mkdir(parents=True)
    late = write(place, 900, 910)
    assert swept(bench).first_halt_reason
    assert "both overwritten" in str(halted(bench))
    assert (bench.rows(), len(list(own(bench).glob("*.parquet")))) == (sorted(late), 1)
    assert resolved(bench, LocationChoice.PREVIOUS).relocated_back == 1
    assert (bench.rows(), len(list(place.iterdir()))) == (sorted(told(rows(500, 520))), 1)


def test_rule_4_an_empty_overwrite_that_removed_all_versions_needs_a_decision_after_the_grace(bench: Bench):
    shutil.rmtree(own(bench))
    own(bench).mkdir()
    assert (swept(bench).waiting, halted(bench)) == (1, None)
    bench.execute("UPDATE place_move SET unsettled_since_ms = unsettled_since_ms - 3600000")
    assert swept(bench).first_halt_reason
    assert "the table's own directory are gone" in str(halted(bench))


@pytest.mark.parametrize("times", [0, 1])
def test_rule_2_an_overwrite_that_removes_an_unrecorded_commit_halts_the_table_until_a_person_repairs_it(
    case: WholeCase, unmoved: Bench, times: int
):
    bench = unmoved
    for _ in range(times):
        bench.request()
        assert bench.run().result is RunResult.COMPLETED
        write(here(bench), 800, 810)
    plan, anew = killed_before_it_records(bench), overwrite_by_spark(own(bench))
    rescued = bench.rescue()
    assert rescued is not None
    assert (rescued.result, bench.state(plan)) == (RunResult.FAILED, "failed")
    assert "SET LOCATION" in str(halted(bench))
    bench.store.resume(bench.table.name, actor="ada")
    bench.sweep()
    assert "SET LOCATION" in str(halted(bench)), "it is what it was"
    set_back(case, bench.table)
    bench.store.resume(bench.table.name, actor="ada")
    bench.sweep()
    bench.sweep()
    assert (halted(bench), bench.rows(), here(bench)) == (None, sorted(anew), own(bench))
    bench.case.append(bench.table, "", 900, 910)
    bench.case.append(bench.table, "", 910, 920)
    expected = bench.rows()
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    bench.clean()
    assert (bench.rows(), swept(bench), halted(bench)) == (expected, SweepReport(), None)


def test_rule_6_a_table_is_restored_once_the_replaced_files_are_deleted(bench: Bench):
    before, place = bench.rows(), here(bench)
    assert brought_home(bench).waiting == 1
    bench.clean()
    assert (brought_home(bench).relocated_back, here(bench), bench.rows()) == (1, own(bench), before)
    assert (brought_home(bench), swept(bench)) == (SweepReport(), SweepReport())
    late = write(place, 900, 910)
    assert (swept(bench).copied, bench.rows()) == (1, sorted([*before, *late]))
    bench.clean()
    assert (place.exists(), bench.rows()) == (False, sorted([*before, *late]))
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    assert (swept(bench), bench.rows()) == (SweepReport(), sorted([*before, *late]))
    assert {path.name for path in own(bench).iterdir() if path.is_dir()} == {".lakefold"}


def test_rule_1_a_table_read_from_a_version_that_is_gone_is_an_integrity_error(case: WholeCase, tmp_path: Path):
    table = case.create(tmp_path / "t", name="t")
    run(case, plan_all(case.format, table, "p"))
    overwrite_by_spark(Path(table.location))
    with pytest.raises(Integrity, match="is read from the version of plan p, which is gone"):
        case.format.find_commit(table, "p")
    assert case.format.find_commit(table, "q") is None
    set_back(case, table, unset="nothing")
    assert case.format.find_commit(table, "p") is None, "its owner has put that right"


def test_rule_7_a_table_that_is_read_from_a_version_shares_its_own_directory_with_no_other(bench: Bench):
    for place in (own(bench), here(bench), own(bench) / "inner"):
        with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
            owner.make_table("other", place)
        directory_index.clear_directory_caches()
        due = [one.version for one in bench.store.awaiting_deletion(bench.table)]
        assert all("contract.other" in str(why) for why in bench.format.deletion_blockers(bench.table, due).values())
        with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
            owner.drop_table("other")
    directory_index.clear_directory_caches()


def test_rule_7_a_table_that_is_recreated_over_replaced_files_keeps_them(bench: Bench):
    replaced = {path.name for path in own(bench).glob("*.parquet")}
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.make_table(table_name(bench.table), own(bench), partitioned=False)
    bench.clean()
    assert (here(bench), {path.name for path in own(bench).glob("*.parquet")}) == (own(bench), replaced)


def test_rule_11_a_column_that_is_added_while_the_table_is_moved_stays_or_keeps_the_commit_away(
    case: WholeCase, tmp_path: Path
):
    table = case.create(tmp_path / "t", name="t")
    before = case.rows(table)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        with Owner(case.uri) as owner:
            there = case.partitions(table)[""]
            assert isinstance(there, MetastoreTable)
            MetastoreClient.alter_table(
                owner,
                DATABASE,
                table_name(table),
                there.with_changes(there.storage, {**there.parameters, "owner": "says"}),
            )
        with pytest.raises(Conflict, match="the table changed before the commit: its properties changed"):
            one.writer.commit(rewrite)
        one.discarded(None)
    assert (case.partitions(table)[""].parameters["owner"], case.rows(table)) == ("says", before)


def test_rule_11_a_table_that_is_written_back_as_it_was_before_a_move_is_moved_again(bench: Bench):
    """As Hive does at the end of an INSERT, and Spark where it counts what a table has."""
    before, then = found(bench), here(bench)
    bench.case.append(bench.table, "", 800, 810)
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    place = here(bench)
    bench.case.append(bench.table, "", 810, 820)
    expected = bench.rows()
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        MetastoreClient.alter_table(owner, DATABASE, table_name(bench.table), before)
    assert here(bench) == then
    late = write(then, 900, 910)
    assert swept(bench).copied == 1
    assert (here(bench), bench.rows(), swept(bench)) == (place, sorted([*expected, *late]), SweepReport())


def test_a_table_below_a_directory_of_the_name_of_that_for_versions_is_where_it_is(case: WholeCase, tmp_path: Path):
    table = case.create(tmp_path / ".lakefold" / "t", name="t")
    rows_before = case.rows(table)
    run(case, plan_all(case.format, table, "p"))
    assert case.places(table)[""].relative_to(table.location).parts[0] == ".lakefold"
    assert (case.rows(table), [one.location for one in found_again(case, table)]) == (rows_before, [table.location])


# What is left alone.


def left_alone(case: WholeCase, table: TableRef) -> set[str | None]:
    return set(case.format.snapshot(table).slices["busy_reason"].to_pylist())


def test_rule_8_a_table_of_sparks_is_left_alone_until_a_rule_declares_that_sessions_refresh(
    metastore: MetastoreServer, tmp_path: Path
):
    case = WholeCase(uri=metastore.uri, by_spark=True)
    table = case.create(tmp_path / "t", name="t")
    (reason,) = left_alone(case, TableRef(name="t", format="hive", location=table.location, catalog=table.catalog))
    assert reason is not None
    assert "set sessions_refresh = true in a rule" in reason
    assert left_alone(case, table) == {None}


@pytest.mark.parametrize(
    ("managed", "noted", "why"),
    [
        (True, False, "the table has no partitions and is managed"),
        (False, True, "set both to one directory"),
    ],
)
def test_a_table_that_can_not_be_moved_is_left_alone_with_the_reason_and_no_plan_touches_it(
    metastore: MetastoreServer, tmp_path: Path, managed: bool, noted: bool, why: str
):
    case, place = WholeCase(uri=metastore.uri), tmp_path / "t"
    place.mkdir()
    with Owner(case.uri) as owner:
        owner.make_table("still", place, partitioned=False, managed=managed, noted=uri(tmp_path) if noted else None)
        before = owner.table(DATABASE, "still")
    assert before is not None
    catalog = CatalogRef(kind="metastore", name=case.uri, table=f"{DATABASE}.still")
    table = TableRef(name="t", format="hive", location=str(place), catalog=catalog, sessions_refresh=True)
    write(place, 0, 5)
    (reason,) = left_alone(case, table)
    assert why in str(reason)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        with pytest.raises(Conflict, match=why):
            one.prepared()
        assert one.journal == []
    with Owner(case.uri) as owner:
        now = owner.table(DATABASE, "still")
        assert now is not None
        assert now.raw == before.raw
        owner.drop_table("still")
