# SPDX-License-Identifier: Apache-2.0
"""Lists of tables in each order, page by page, as if one had looked at each; and what databases add up to."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update
from store_plans import TRIPS, add

from lake.model import HISTOGRAM_EDGES_BYTES, TableRef
from planner.slo.model import Objective, ObjectiveEvaluation
from service.control.store import ScanRecord, Store, TableOrder, TableScope, TableState
from service.control.store.errors import InvalidCursor
from service.control.store.models import ObjectiveRow

pytestmark = pytest.mark.paired("database_url")

NAMES = [
    "sales.orders",
    "sales.Returns",
    "sales.eu.orders",
    "ops.jobs_1",
    "ops.jobs_2",
    "ops.100%",
    "loose",
    "never.seen",
]
STATES = ["halted", "paused", "compact", "observe", "off"]


def fill(store: Store) -> None:
    """Tables of two formats and three owners in every state, three of them alike, one without a scan."""
    chance, now = random.Random(3), datetime.now(UTC).replace(microsecond=0)
    for number, name in enumerate(NAMES):
        format_, owner = ("hudi", "toy")[number % 2], (None, "ann", "bob")[number % 3]
        table = TableRef(name=name, format=format_, location=f"/lake/{number}")
        store.register_table(table, ("compact", "observe", "off")[number // 3], owner, tags_of(number))
        if name == "never.seen":
            continue
        counts = [0] * (len(HISTOGRAM_EDGES_BYTES) + 1)
        for _ in range(chance.randrange(4)):
            counts[chance.randrange(len(counts))] += 5
        alike = name.startswith("ops")
        store.record_scan(
            ScanRecord(
                table=name,
                taken_at=now - timedelta(minutes=number // 2),
                files=sum(counts),
                bytes=number * 10**15,
                small_files=sum(counts),
                median_bytes=chance.randrange(10**9) if sum(counts) else None,
                histogram=tuple(counts),
                reducible_files=0 if alike else sum(counts) // 2,
                reducible_bytes=7 if alike else chance.randrange(10**16),
            )
        )
    for name, value, goal in (("sales.orders", 0.1, 0.9), ("ops.jobs_2", 0.7, 0.99), ("ops.100%", 0.7, 0.9)):
        held(store, name, value, goal)
    store.record_scan(ScanRecord(table="loose", taken_at=now, outcome="error", error="no such file"))
    store.pause("ops.jobs_2", "ada")
    for number in (4, 0, 2):
        add(store, f"dt={number}", table=replace(TRIPS, name=NAMES[number]))
        store.register_table(
            TableRef(name=NAMES[number], format=("hudi", "toy")[number % 2], location=f"/lake/{number}"),
            ("compact", "observe", "off")[number // 3],
            (None, "ann", "bob")[number % 3],
            tags_of(number),
        )


def tags_of(number: int) -> tuple[str, ...]:
    return ("pii",) if number % 4 == 0 else ("pii.eu", "core") if number % 4 == 1 else ()


def held(store: Store, name: str, value: float, goal: float) -> None:
    """What the last scan of a table found once more, with an objective; it was missed for an hour before that."""
    scan = store.last_scans([name])[name]
    for found in (0.9, value):
        judged = ObjectiveEvaluation(
            objective=Objective.SMALL_FILE_SHARE,
            value=found,
            bound=0.2,
            goal=goal,
            window=timedelta(days=7),
            valid_for=timedelta(hours=9),
        )
        store.record_scan(scan, None, [judged])
        earlier = {"judged_at_ms": ObjectiveRow.judged_at_ms - 3_600_000, "changed_at_ms": 0}
        with store._database.write() as connection:
            connection.execute(update(ObjectiveRow).where(ObjectiveRow.table_name == name).values(**earlier))


def state_of(table: TableState) -> str:
    return "halted" if table.halted else "paused" if table.paused else table.mode


def share(scan: ScanRecord) -> float | None:
    return (scan.reducible_files or 0) / scan.files if scan.files else None


def values(store: Store) -> dict[TableOrder, Callable[[TableState], Any]]:
    """What each order goes by, told from the whole rows; None where there is nothing to go by."""
    scans, plans = store.last_scans(ok=True), store.newest_plans(NAMES)

    def of_scan(read: Callable[[ScanRecord], Any]) -> Callable[[TableState], Any]:
        return lambda table: read(scans[table.name]) if table.name in scans else None

    owners = {name: (None, "ann", "bob")[number % 3] for number, name in enumerate(NAMES)}
    return {
        TableOrder.NAME: lambda table: table.name,
        TableOrder.STATE: lambda table: STATES.index(state_of(table)),
        TableOrder.FORMAT: lambda table: table.format,
        TableOrder.MODE: lambda table: table.mode,
        TableOrder.OWNER: lambda table: owners[table.name],
        TableOrder.FILES: of_scan(lambda scan: scan.files),
        TableOrder.BYTES: of_scan(lambda scan: scan.bytes),
        TableOrder.REWRITE: of_scan(lambda scan: scan.reducible_bytes),
        TableOrder.REDUCIBLE: of_scan(share),
        TableOrder.MEDIAN: of_scan(lambda scan: scan.median_bytes),
        TableOrder.SCANNED: of_scan(lambda scan: scan.taken_at),
        TableOrder.PLAN: lambda table: plans[table.name].plan_id if table.name in plans else None,
        TableOrder.BUDGET: lambda table: (
            store.objectives()[table.name][0].budget_left if table.name in store.objectives() else None
        ),
        TableOrder.ATTENTION: lambda table: (
            {"halted": 0, "off": 2, "observe": 2}.get(state_of(table), 1),
            -((scans[table.name].reducible_bytes or 0) if table.name in scans else 0),
        ),
    }


@pytest.mark.parametrize("order", TableOrder)
@pytest.mark.parametrize("descending", [False, True])
def test_tables_are_sorted_with_equals_by_name_and_missing_values_last(
    store: Store, order: TableOrder, descending: bool
) -> None:
    fill(store)
    of, tables = values(store)[order], store.table_states()
    tables.sort(key=lambda table: table.name)
    known = sorted((t for t in tables if of(t) is not None), key=of, reverse=descending)
    want = [table.name for table in [*known, *(t for t in tables if of(t) is None)]]
    for limit in (1, 3, 100):
        found, after = list[str](), None
        while True:
            page = store.list_tables(order, descending=descending, limit=limit, after=after)
            found += page.names
            after = page.next
            if after is None:
                break
        assert found == want
        assert page.total == len(NAMES)
    for number in (1, 2, 3, 99):
        page = store.list_tables(order, descending=descending, limit=3, page=number)
        assert page.number == min(number, 3)
        assert list(page.names) == want[3 * page.number - 3 : 3 * page.number]


def test_a_table_that_moved_to_an_earlier_page_is_not_repeated(store: Store) -> None:
    fill(store)
    first = store.list_tables(TableOrder.REWRITE, descending=True, limit=3)
    low = store.list_tables(TableOrder.REWRITE, descending=True, limit=99).names[5]
    store.record_scan(ScanRecord(table=low, taken_at=datetime.now(UTC), reducible_bytes=10**17 - 1))
    rest = store.list_tables(TableOrder.REWRITE, descending=True, limit=99, after=first.next).names
    assert not set(rest) & {low, *first.names}
    of_numbers = "nonsense", "[]", "[1]", "7", '["x","y"]', "null", '[{},"a"]', f'[{2**64},"a"]', "[1,2]", '[true,"a"]'
    of_names = '[1,"a"]', r'["\ud800","a"]', r'["a","\u0000"]'
    for order, wrongs in ((TableOrder.REWRITE, of_numbers), (TableOrder.NAME, of_names)):
        for wrong in wrongs:
            with pytest.raises(InvalidCursor, match="is not the value of next in a list of tables"):
                store.list_tables(order, limit=3, after=wrong)


def test_tables_are_found_by_part_of_the_name_database_state_format_mode_and_owner(store: Store) -> None:
    fill(store)

    def named(**which: Any) -> list[str]:
        return list(store.list_tables(TableOrder.NAME, limit=99, **which).names)

    assert named(name="ORD") == ["sales.eu.orders", "sales.orders"]
    assert named(name="%") == ["ops.100%"]
    assert named(name="s_1") == ["ops.jobs_1"]
    assert named(database="sales") == ["sales.Returns", "sales.orders"]
    assert named(database="sales.eu") == ["sales.eu.orders"]
    assert named(database="") == ["loose"]
    assert named(state="paused") == ["ops.jobs_2"]
    assert named(state="unreadable") == ["loose"]
    assert named(state="objective_missed") == ["ops.100%", "ops.jobs_2"]
    assert named(state="objective_missed", name="jobs") == ["ops.jobs_2"]
    assert named(mode="observe") == ["ops.100%", "ops.jobs_1", "ops.jobs_2"]
    assert named(state="observe", mode="observe") == ["ops.100%", "ops.jobs_1"]
    assert named(format="toy", owner="ann") == ["never.seen", "sales.Returns"]
    assert named(owner="bob", name="ops") == ["ops.100%"]
    assert named(owner="nobody") == []
    assert named(tag="pii") == sorted(NAMES[0::4]), "a tag is a whole word"
    assert named(tag="core") == sorted(NAMES[1::4])
    assert named(tag="%") == []
    labels = {"format": ["hudi", "toy"], "owner": ["ann", "bob"], "tag": ["core", "pii", "pii.eu"]}
    assert store.table_labels() == labels
    limited = store.limited_to(TableScope(("sales.*",)))
    assert limited.list_tables(TableOrder.ATTENTION, limit=99).total == 3
    assert [entry.database for entry in limited.database_sums(name="o")] == [
        entry.database for entry in store.database_sums(name="o") if entry.database.startswith("sales")
    ]


def test_databases_are_the_sums_of_their_tables(store: Store) -> None:
    fill(store)
    scans = store.last_scans(ok=True)
    found = {entry.database: entry for entry in store.database_sums()}
    assert list(found) == sorted(found, key=lambda name: (-found[name].reducible_bytes, name))
    assert set(found) == {"sales", "sales.eu", "ops", "", "never"}
    for database, entry in found.items():
        names = [name for name in NAMES if name.rpartition(".")[0] == database]
        inside = [scans[name] for name in names if name in scans]
        assert (entry.tables, entry.files, entry.bytes, entry.reducible_files, entry.reducible_bytes) == (
            len(names),
            sum(s.files for s in inside),
            sum(s.bytes for s in inside),
            sum(s.reducible_files or 0 for s in inside),
            sum(s.reducible_bytes or 0 for s in inside),
        )
    assert [entry.tables for entry in store.database_sums(state="paused")] == [1]
