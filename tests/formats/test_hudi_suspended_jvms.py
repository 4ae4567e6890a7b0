# SPDX-License-Identifier: Apache-2.0
"""JVMs that continue to write without their Python process after their plan was withdrawn, taken over or committed."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from hudi_other_writer import OtherWriter
from hudi_tables import copy
from hudi_writing import FORMAT, Table
from kept_tables import small_table
from uuid_utils import uuid7

from executors.context import RunContext
from executors.sweep import sweep_table
from lake.formats.hudi.pending.late_files import record_path
from service.control.store import Store

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("then", ["cancelled", "completed"])
@pytest.mark.crossed
def test_files_that_a_jvm_writes_after_its_plans_withdrawal_and_its_pythons_death_are_deleted_by_the_sweep(
    spark: Any, tmp_path: Path, store: Store, other: OtherWriter, then: str
) -> None:
    trips = Table(spark, copy(small_table(spark), tmp_path / "lake" / "trips"))
    before = trips.rows(), trips.other_rows()
    plan = trips.plan(str(uuid7()))
    store.register_table(plan.table, "compact")
    store.add_plan(plan, request_id=None, actor="test", estimate={})
    claim = store.claim("first")
    assert claim is not None
    markers = Path(trips.base) / ".hoodie/.temp"

    def about_to_write() -> bool:
        return any(markers.rglob("*.marker.*"))  # a task's last step before it opens its file

    other.run_plan(trips.base, plan.plan_id, plan.partitions, {})
    other.stop_when(about_to_write)
    (asleep,) = trips.timeline().pending
    with trips.writer() as writer:
        assert writer.withdraw(plan.plan_id, None) == 1
        assert trips.files_of(asleep.time) == set()
        if then == "completed":
            writer.commit(writer.rewrite(writer.prepare(plan, 2), lambda progress: None))
    store.cancel(claim, "cancelled by hand", actor="ada")
    other.lose_python()
    other.go_on()
    wait_for_files(trips, asleep.time)
    other.end()
    (unowned,) = {FORMAT.verify(trips.ref, (), rows=False).unowned}
    assert set(unowned) == trips.files_of(asleep.time) != set()
    sweep_table(trips.ref, RunContext(store=store, spark=lambda: spark), format=FORMAT)
    assert trips.files_of(asleep.time) == set()
    found = FORMAT.verify(trips.ref, [due.version for due in store.awaiting_deletion(trips.ref)], rows=True)
    assert (found.unowned, found.missing, found.resurrected, found.rows) == ((), (), (), len(before[0]))
    assert trips.temporary() == []
    assert (trips.rows(), trips.other_rows()) == before
    assert not list(FORMAT.instants_with_stragglers(trips.ref))


def wait_for_files(trips: Table, instant: str, seconds: float = 60) -> None:
    """Until there are files of ``instant`` that grow no more."""
    deadline, seen = time.monotonic() + seconds, {}
    while True:
        time.sleep(1)
        found = {path: trips.data_files().get(path) for path in trips.files_of(instant)}
        if found and found == seen:
            return
        assert time.monotonic() < deadline, "the JVM wrote nothing any more"
        seen = found


def test_a_file_that_a_task_writes_under_a_committed_instant_doubles_its_rows_until_the_sweep(
    spark: Any, tmp_path: Path, store: Store
) -> None:
    trips = Table(spark, copy(small_table(spark), tmp_path / "lake" / "trips"))
    before = trips.rows(), trips.other_rows()
    commit = trips.run(trips.plan(str(uuid7())))
    assert (Path(trips.base) / record_path(commit.instant)).exists()
    one = Path(trips.base) / commit.outputs[0].path
    shutil.copy(one, one.with_name("0" * 8 + one.name[8:]))
    assert len(trips.rows()) > len(before[0])
    for _ in range(2):
        sweep_table(trips.ref, RunContext(store=store, spark=lambda: spark), format=FORMAT)
        assert (trips.rows(), trips.other_rows()) == before
    assert trips.files_of(commit.instant) == {output.path for output in commit.outputs}
