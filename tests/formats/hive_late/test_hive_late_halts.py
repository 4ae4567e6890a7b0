# SPDX-License-Identifier: Apache-2.0
"""A halt ends rewriting, of one partition or of its table; it never ends the duty to partitions that were moved.

Here ``dt=0`` is halted: two overwrites met it, and no file says which of them is later.
"""

import shutil
import time
from pathlib import Path

import pytest
from hive_case import Owner, table_name
from late_writing import PARTITION, here, home, in_partition, overwrite, rows_in, swept, write
from toys.bench import Bench
from toys.cases import no_spark
from waiting import wait_for

from executors.observer import Observer
from executors.outcome import RunResult
from lake.errors import Transient
from service.cli import main
from service.control.config.loader import Config, load_config
from service.control.config.table_settings import configure_table
from service.control.planning.scan import explain_table
from service.server.daemon.maintenance import Maintenance

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]

OTHER = "dt=1"


@pytest.fixture
def config(bench: Bench, tmp_path: Path) -> Config:
    rules = '[[tables]]\nmatch = "*"\nmode = "compact"\naccess = "catalog"\n[defaults]\nquiet_period = "0s"\n'
    source = f'[database]\nurl = "{bench.url}"\n[[sources]]\npath = "lake"\n'
    (tmp_path / "lakefold.toml").write_text(f"{source}{rules}")
    return load_config(tmp_path / "lakefold.toml")


@pytest.fixture
def upkeep(bench: Bench, config: Config) -> Maintenance:
    """The loops of a daemon."""
    return Maintenance(config, bench.store, no_spark, Observer())


def own(bench: Bench, partition: str) -> Path:
    """The directory that a partition had before lakefold moved it."""
    return Path(bench.table.location) / partition


def read(bench: Bench, partition: str) -> list[str]:
    """The rows of a partition, wherever the metastore sends its readers."""
    return rows_in(bench.case.places(bench.table)[partition])  # type: ignore[attr-defined]


def decided(bench: Bench, config: Config) -> dict[str, set[str]]:
    """What planning says of the files of each partition, one more small file in each."""
    for place in bench.case.places(bench.table).values():  # type: ignore[attr-defined]
        write(place, 800, 810, "part-800.parquet")
    planning = explain_table(bench.store, configure_table(config, bench.table))
    texts = planning.reason_texts(range(planning.decisions.num_rows))
    found: dict[str, set[str]] = {}
    for partition, text in zip(planning.decisions["partition"].to_pylist(), texts, strict=True):
        found.setdefault(partition, set()).add(text)
    return found


def two_overwrites(bench: Bench) -> list[str]:
    """``dt=0`` is overwritten where it is and where it was; its rows afterwards."""
    there = overwrite(here(bench), 700, 720)
    overwrite(home(bench), 500, 520)
    return sorted(there)


def dropped(bench: Bench, partition: str) -> None:
    """Its owner drops a partition; the metastore counts ages in seconds."""
    made = bench.case.partitions(bench.table)[partition].created_at  # type: ignore[attr-defined]
    wait_for(lambda: time.time() > made + 1, "time stands still")
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(bench.table), partition.partition("=")[2])


def reloaded(bench: Bench, partition: str, low: int, high: int) -> list[str]:
    """Its owner adds a partition again, at the table's default directory, with new rows."""
    rows = write(own(bench, partition), low, high, "part-reloaded.parquet")
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), partition.partition("=")[2], own(bench, partition))
    return sorted(rows)


def test_only_the_partition_that_a_person_has_to_settle_is_halted_and_it_alone_is_neither_planned_nor_cleaned(
    bench: Bench, upkeep: Maintenance, config: Config
):
    two_overwrites(bench)
    upkeep.sweep_recent()
    state = bench.store.table_state(bench.table.name)
    assert (state.halted, list(state.halted_partitions)) == (False, [PARTITION])
    assert "both overwritten" in state.halted_partitions[PARTITION].reason
    report = bench.clean()
    assert {one.partition for one in report.deleted} == {OTHER}
    assert {(one.version.partition, "is halted: " in one.reason) for one in report.kept} == {(PARTITION, True)}
    reasons = decided(bench, config)
    assert f"once the cause is removed: lakefold resume {bench.table.name}" in str(reasons[PARTITION])
    assert reasons[OTHER] == {"chosen, group 1"}


def test_a_plan_leaves_a_partition_out_that_is_halted_while_it_waits(bench: Bench, upkeep: Maintenance):
    for partition in (PARTITION, OTHER):
        write(bench.case.places(bench.table)[partition], 800, 810, "part-800.parquet")  # type: ignore[attr-defined]
    plan = bench.request()
    bench.store.halt_partition(bench.table, PARTITION, "a test")
    before = here(bench)
    assert bench.run().result is RunResult.COMPLETED
    left = {group.partition: group.left_out for group in bench.store.plan(plan.plan_id).groups}
    assert (left, here(bench)) == ({PARTITION: f"partition {PARTITION} is halted: a test", OTHER: None}, before)
    assert bench.store.table_state(bench.table.name).halted_partitions.keys() == {PARTITION}


def test_late_appends_to_other_partitions_are_visible_while_one_partition_is_halted(bench: Bench, upkeep: Maintenance):
    halted_rows = two_overwrites(bench)
    upkeep.sweep_recent()
    expected = read(bench, OTHER)
    for low in (900, 910):
        expected = sorted([*expected, *write(own(bench, OTHER), low, low + 10, f"part-{low}.parquet")])
        (upkeep.sweep_recent if low == 900 else upkeep.sweep)()
        assert (read(bench, OTHER), in_partition(bench)) == (expected, halted_rows)


def test_a_partition_that_is_dropped_and_reloaded_is_read_once_while_another_one_is_halted(
    bench: Bench, upkeep: Maintenance
):
    two_overwrites(bench)
    upkeep.sweep_recent()
    dropped(bench, OTHER)
    upkeep.sweep_recent()
    anew = reloaded(bench, OTHER, 600, 610)
    assert read(bench, OTHER) == anew
    upkeep.sweep()
    assert read(bench, OTHER) == anew


@pytest.mark.parametrize("is_off", [False, True])
def test_partitions_that_were_moved_are_swept_on_when_their_table_is_halted_or_off(
    bench: Bench, upkeep: Maintenance, is_off: bool
):
    if is_off:
        bench.store.register_table(bench.table, "off")
    bench.store.halt_table(bench.table, "rows differ")
    expected = sorted([*in_partition(bench), *write(home(bench), 900, 910)])
    upkeep.sweep_recent()
    assert in_partition(bench) == expected
    expected = sorted([*expected, *write(home(bench), 910, 920, "part-910.parquet")])
    upkeep.sweep()
    assert in_partition(bench) == expected
    dropped(bench, PARTITION)
    upkeep.sweep_recent()
    assert (reloaded(bench, PARTITION, 600, 610), in_partition(bench)) == (sorted(in_partition(bench)),) * 2
    assert bench.store.table_state(bench.table.name).halted_reason == "rows differ"


def test_each_halted_partition_is_settled_by_itself_while_the_sweep_continues(
    bench: Bench, upkeep: Maintenance, config: Config, capsys: pytest.CaptureFixture[str]
):
    there = {PARTITION: two_overwrites(bench), OTHER: []}
    there[OTHER] = sorted(overwrite(bench.case.places(bench.table)[OTHER], 730, 750))  # type: ignore[attr-defined]
    formers = {PARTITION: rows_in(home(bench)), OTHER: sorted(overwrite(own(bench, OTHER), 530, 550))}
    upkeep.sweep_recent()
    upkeep.sweep_recent()
    halted = bench.store.table_state(bench.table.name).halted_partitions
    assert halted.keys() == {PARTITION, OTHER}

    def resolve(partition: str, *choice: str) -> tuple[int, str]:
        words = ("tables", "resolve", "toy", "--partition", partition, *choice, "--config", str(config.file))
        return main.run(words), capsys.readouterr().err

    assert resolve(OTHER, "--keep", "previous") == (0, "")
    assert bench.store.halted_partitions(bench.table).keys() == {PARTITION}
    upkeep.sweep_recent()
    assert (read(bench, OTHER), in_partition(bench)) == (formers[OTHER], there[PARTITION])
    notice = "--take new was renamed to --keep current; the next release will not accept the old name\n"
    assert resolve(PARTITION, "--take", "new") == (0, notice)
    upkeep.sweep_recent()
    assert (in_partition(bench), bench.store.halted_partitions(bench.table)) == (there[PARTITION], {})
    code, _ = resolve("dt=7", "--keep", "current")
    assert code == 10, "no such partition was moved"


def test_a_partition_that_cannot_be_listed_keeps_no_other_partition_from_the_sweep(bench: Bench, upkeep: Maintenance):
    shutil.rmtree(home(bench))
    home(bench).write_text("no directory")
    expected = sorted([*read(bench, OTHER), *write(own(bench, OTHER), 900, 910)])
    upkeep.sweep_recent()
    assert read(bench, OTHER) == expected
    with pytest.raises(Transient, match=f"{PARTITION} can't be listed"):
        swept(bench)


def test_late_files_of_a_halted_partition_are_copied_and_a_reload_shows_no_replaced_file(
    bench: Bench, upkeep: Maintenance
):
    bench.store.halt_partition(bench.table, PARTITION, "somebody changed the partition in the metastore while it did")
    expected = sorted([*in_partition(bench), *write(home(bench), 900, 910)])
    upkeep.sweep_recent()
    assert in_partition(bench) == expected
    assert {one.partition for one in bench.clean().deleted} == {OTHER}
    dropped(bench, PARTITION)
    upkeep.sweep_recent()
    anew = reloaded(bench, PARTITION, 600, 610)
    assert read(bench, PARTITION) == anew
    assert (upkeep.sweep_recent(), bench.clean().deleted, read(bench, PARTITION)) == (0, (), anew)
    bench.store.resume(bench.table.name, "ada")
    bench.clean()
    assert read(bench, PARTITION) == anew
