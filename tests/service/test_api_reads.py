# SPDX-License-Identifier: Apache-2.0
"""Reading over HTTP: what it answers is what the command line prints, page by page."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from api_toys import add_token, client_of, context_at
from store_plans import sql
from toys.files import rows
from toys.timeline import ToyFormat
from toys.timeline_tables import create, write
from uuid_utils import uuid7

from lake.model import FileSlice, TableRef
from lake.plan import ClusteringGroup, Plan, PlanKind, RewriteOptions
from service.control.config.table_settings import configure_table
from service.control.planning.scan import scan_and_plan
from service.control.store import ScanRecord, scans
from service.text import to_jsonable

RULES = '[defaults]\nsmall_file_limit = "1MiB"\nquiet_period = "0s"\n'
RULES += '[[tables]]\nmatch = "sales.*"\nmode = "compact"\nconcurrency = "single_writer"\n'
RULES += '[[tables]]\nmatch = "ops.*"\nowner = "desk"\ntags = ["pii"]\n'
RULES += '[[tables]]\nmatch = "*.a"\ntags = ["core", "pii"]\n'


@pytest.fixture
def lake(toys, tmp_path):
    """A served lake with one scanned toy table ``sales.orders`` of five partitions, and a client for it."""
    context = context_at(tmp_path, rules=RULES)
    table = create(tmp_path / "orders", name="sales.orders", partitions=5, files=3)
    write(table, "dt=9", rows(0, 10))
    answer = scan_and_plan(context.config, context.store, configure_table(context.config, table), actor="test")
    with client_of(context) as client:
        yield context, client, table, answer
    context.store.close()


def pages(client, path):
    """The items of every page, following the Link header; ``next`` must lead to the same."""
    items = []
    while path:
        answer = client.get(path)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        items += document["items"]
        link = answer.headers.get("Link")
        assert (link is None) == (document["next"] is None)
        path = link and link.removeprefix("<").removesuffix('>; rel="next"')
    return items


def add_plans(store, count, table="sales.many"):
    ref = TableRef(name=table, format="hudi", location=f"/lake/{table}")
    store.register_table(ref, "compact")
    made = []
    for n in range(count):
        piece = FileSlice(partition=f"p={n}", file_id=f"f{n}", path=f"p={n}/f{n}.parquet", bytes=1000)
        plan = Plan(
            plan_id=str(uuid7()),
            table=ref,
            kind=PlanKind.CLUSTERING,
            snapshot_instant="1",
            groups=(ClusteringGroup(partition=f"p={n}", slices=(piece,), output_files=1),),
            options=RewriteOptions(target_file_max_bytes=1 << 20),
        )
        store.add_plan(plan, request_id=None, actor="test", estimate={})
        made.append(plan.plan_id)
    return made


def test_the_partitions_of_the_last_whole_scan_add_up_to_the_scan(lake):
    context, client, _, _ = lake
    document = client.get("/v1/tables/sales.orders/partitions").json()
    scan = context.store.last_scan("sales.orders")
    assert document["taken_at"] == to_jsonable(scan.taken_at)
    items = document["items"]
    assert [item["partition"] for item in items] == [*(f"dt={n}" for n in range(5)), "dt=9"]
    for name in ("files", "bytes", "small_files", "small_bytes", "log_files", "log_bytes"):
        assert sum(item[name] for item in items) == getattr(scan, name), name
    assert [item["reducible_files"] for item in items] == [3, 3, 3, 3, 3, 0]
    for item in items:
        assert sum(line["files"] for line in item["lines"]) == item["files"]
    (left,) = items[-1]["lines"]
    assert (left["reason"], left["setting"], left["has_several_values"]) == ("alone", "min_input_files", False)


def test_partitions_are_paged(lake):
    _, client, _, _ = lake
    whole = pages(client, "/v1/tables/sales.orders/partitions")
    assert pages(client, "/v1/tables/sales.orders/partitions?limit=2") == whole
    assert pages(client, "/v1/tables/sales.orders/partitions?limit=6") == whole


def test_partitions_are_found_by_part_of_their_path_worst_first(lake):
    context, client, table, _ = lake
    whole = client.get("/v1/tables/sales.orders/partitions").json()["items"]
    found = client.get("/v1/tables/sales.orders/partitions?search=T=9").json()["items"]
    assert found == [item for item in whole if item["partition"] == "dt=9"]
    assert pages(client, "/v1/tables/sales.orders/partitions?search=dt&limit=4") == whole
    layout = context.store.partition_layout(table.name)
    bytes_ = pa.array([10, 30, 30, 0, 20, 0])
    more = pa.array([1, 1, 2, 0, 9, 0])
    changed = layout.partitions.set_column(
        layout.partitions.schema.get_field_index("reducible_bytes"), "reducible_bytes", bytes_
    )
    changed = changed.set_column(changed.schema.get_field_index("reducible_files"), "reducible_files", more)
    context.store.record_scan(context.store.last_scan(table.name), changed)
    worst = client.get("/v1/tables/sales.orders/partitions?worst=true&limit=4").json()
    assert [item["partition"] for item in worst["items"]] == ["dt=2", "dt=1", "dt=4", "dt=0"]
    assert worst["next"] is None
    assert client.get("/v1/tables/sales.orders/partitions?worst=true&search=none").json()["items"] == []


def test_a_scan_that_failed_leaves_the_layout_as_it_was(lake):
    context, _, table, _ = lake
    before = context.store.partition_layout("sales.orders")
    context.store.record_scan(ScanRecord(table=table.name, taken_at=datetime.now(UTC), outcome="error", error="gone"))
    after = context.store.partition_layout("sales.orders")
    assert (after.taken_at, after.partitions) == (before.taken_at, before.partitions)


def test_a_table_without_a_scan_has_no_partitions_yet(lake):
    context, client, _, _ = lake
    context.store.register_table(TableRef(name="sales.new", format="toy", location="/nowhere"), "observe")
    answer = client.get("/v1/tables/sales.new/partitions").json()
    assert answer == {"items": [], "next": None, "taken_at": None}


def test_the_list_of_tables_has_most_to_rewrite_first_and_is_paged(lake):
    context, client, _, _ = lake
    now = datetime.now(UTC)
    for name, bytes_ in (("sales.b", 5), ("sales.a", 5), ("sales.c", 10**12)):
        context.store.register_table(TableRef(name=name, format="toy", location=f"/lake/{name}"), "observe")
        context.store.record_scan(ScanRecord(table=name, taken_at=now, reducible_bytes=bytes_))
    context.store.register_table(TableRef(name="sales.never", format="toy", location="/lake/never"), "observe")
    names = [item["table"] for item in pages(client, "/v1/tables")]
    assert names == ["sales.c", "sales.orders", "sales.a", "sales.b", "sales.never"]
    for limit in (1, 2, 3):
        assert [item["table"] for item in pages(client, f"/v1/tables?limit={limit}")] == names
    assert client.get("/v1/tables?after=nonsense").status_code == 422


def test_tables_are_listed_in_any_order_found_by_their_owner_jumped_to_and_added_up(lake):
    context, client, _, _ = lake
    for number, name in enumerate(("sales.b", "ops.a", "ops.c")):
        ref = TableRef(name=name, format="toy", location=f"/lake/{name}")
        table = configure_table(context.config, ref)
        context.store.register_table(ref, table.mode, table.owner, table.tags)
        context.store.record_scan(ScanRecord(table=name, taken_at=datetime.now(UTC), files=number, bytes=number * 10))

    def names(query):
        return [item["table"] for item in client.get(f"/v1/tables?{query}").json()["items"]]

    assert names("sort=name&name=S.") == ["ops.a", "ops.c", "sales.b", "sales.orders"]
    assert names("sort=-files") == ["sales.orders", "ops.c", "ops.a", "sales.b"]
    assert names("owner=desk") == ["ops.a", "ops.c"]
    assert client.get("/v1/tables?owner=desk").json()["items"][0]["owner"] == "desk"
    assert client.get("/v1/tables?owner=desk&sort=name").json()["items"][0]["tags"] == ["core", "pii"]
    assert (names("tag=pii&sort=name"), names("tag=core"), names("tag=co")) == (["ops.a", "ops.c"], ["ops.a"], [])
    assert names("database=ops&sort=-name") == ["ops.c", "ops.a"]
    second = client.get("/v1/tables?sort=name&limit=3&page=2").json()
    assert ([item["table"] for item in second["items"]], second["total"], second["pages"]) == (["sales.orders"], 4, 2)
    ops = client.get("/v1/databases?owner=desk").json()["items"]
    assert [(entry["database"], entry["tables"], entry["files"]) for entry in ops] == [("ops", 2, 3)]
    for wrong in ("sort=size", "page=0", "state=fine", "mode=no", "page=1&after=x"):
        assert client.get(f"/v1/tables?{wrong}").status_code in (400, 422), wrong


def test_a_table_shows_its_last_scan_its_facts_and_its_policy(lake):
    context, client, _, _ = lake
    document = client.get("/v1/tables/sales.orders").json()
    assert document["scan"] == to_jsonable(context.store.last_scan("sales.orders"))
    assert document["facts"] == {"newest": "16"}
    assert document["policy"]["small_file_limit"] == "1MiB"


def test_a_table_that_cannot_be_read_from_here_still_shows_its_data_in_the_database(lake, monkeypatch):
    def unreadable(self, table):
        raise PermissionError(13, "Permission denied", table.location)

    context, client, table, _ = lake
    monkeypatch.setattr(ToyFormat, "describe", unreadable)
    document = client.get("/v1/tables/sales.orders").json()
    assert document["facts"] == {"unreadable": f"Permission denied: {table.location}"}
    assert document["scan"] == to_jsonable(context.store.last_scan("sales.orders"))
    assert document["location"] == table.location


def test_a_table_that_is_not_known_is_a_problem_with_the_nearest_name(lake):
    _, client, _, _ = lake
    for path in ("", "/partitions", "/scans", "/explain"):
        answer = client.get(f"/v1/tables/sales.order{path}")
        assert answer.status_code == 404
        assert answer.json()["detail"] == "no table 'sales.order'; did you mean 'sales.orders'?"
    assert client.get("/v1/settings?table=sales.order").status_code == 404


def test_scans_are_listed_newest_first_including_failed_ones(lake):
    context, client, table, _ = lake
    later = context.store.last_scan(table.name).taken_at + timedelta(minutes=5)
    context.store.record_scan(ScanRecord(table=table.name, taken_at=later, outcome="error", error="unreadable"))
    items = client.get("/v1/tables/sales.orders/scans").json()["items"]
    assert [item["outcome"] for item in items] == ["error", "ok"]
    assert items[1] == to_jsonable(context.store.last_scan(table.name, ok=True))
    assert len(client.get("/v1/tables/sales.orders/scans?limit=1").json()["items"]) == 1


def test_plans_are_listed_by_table_and_state_in_pages(lake):
    context, client, _, answer = lake
    made = add_plans(context.store, 7)
    newest_first = [*reversed(made), *answer.plan_ids]
    assert [plan["plan_id"] for plan in pages(client, "/v1/plans?limit=3")] == newest_first
    assert [plan["plan_id"] for plan in pages(client, "/v1/plans?table=sales.many&limit=2")] == list(reversed(made))
    context.store.request_cancel(made[2], actor="test", reason="")
    assert [plan["plan_id"] for plan in pages(client, "/v1/plans?state=cancelled")] == [made[2]]
    assert client.get("/v1/plans?state=done").json()["detail"].startswith("query.state: ")
    assert client.get("/v1/plans?limit=0").status_code == 422


def test_a_plan_is_found_by_the_end_of_its_id_and_shows_its_events(lake):
    context, client, _, answer = lake
    (plan_id,) = answer.plan_ids
    document = client.get(f"/v1/plans/{plan_id[-8:]}").json()
    assert (document["plan_id"], document["table"]) == (plan_id, "sales.orders")
    events = client.get(f"/v1/plans/{plan_id}/events").json()["items"]
    assert events == document["events"] == to_jsonable(context.store.plan_events(plan_id))
    add_plans(context.store, 2)
    ambiguous = client.get(f"/v1/plans/{plan_id[:2]}")
    assert (ambiguous.status_code, ambiguous.json()["type"]) == (400, "/docs/problems.md#usage")
    assert client.get("/v1/plans/ffffffff").json()["title"] == "Not found"


def test_status_and_settings_equal_the_output_of_the_command_line(lake, capsys):
    from service.cli.main import run

    context, client, _, _ = lake
    file = str(context.config.file)

    def printed(*command):
        assert run([*command, "--json", "--config", file]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    status, (local,) = client.get("/v1/status").json(), printed("status")
    assert status.keys() == local.keys()
    assert status | {"taken_at": None} == local | {"taken_at": None}
    assert client.get("/v1/settings").json()["items"] == printed("config", "show")
    assert client.get("/v1/plans").json()["items"] == printed("plans", "list")


def test_one_reading_serves_status_and_page_until_something_is_changed_through_this_process(lake, monkeypatch):
    context, client, table, _ = lake
    readings, read = [], context.store.figures
    monkeypatch.setattr(context.store, "figures", lambda known: readings.append(1) or read(known))
    monkeypatch.setattr("service.control.lake_cache._FRESH_SECONDS", 60.0)  # a busy machine takes longer than one
    first = client.get("/v1/status").json()
    assert client.get("/v1/status").json() == first
    assert client.get("/", headers={"Accept": "text/html"}).status_code == 200
    assert len(readings) == 1
    header = {"Authorization": f"Bearer {add_token(context.store, 'write')}"}
    assert client.post(f"/v1/tables/{table.name}/pause", headers=header).status_code == 200
    assert client.get("/v1/status").json()["paused_tables"] == [table.name]
    client.post("/v1/pause", headers=header)
    assert client.get("/v1/status").json()["paused"]
    assert len(readings) == 3


def test_a_page_of_tables_reads_the_scans_of_no_other(lake, monkeypatch):
    context, client, _, _ = lake
    for number in range(30):
        name = f"sales.t{number:02d}"
        context.store.register_table(TableRef(name=name, format="toy", location=f"/lake/{name}"), "observe")
        context.store.record_scan(ScanRecord(table=name, taken_at=datetime.now(UTC), reducible_bytes=2**40 + number))
    read, rows = scans._cached_scan_from_json, []
    monkeypatch.setattr(scans, "_cached_scan_from_json", lambda record, at: rows.append(1) or read(record, at))
    whole = pages(client, "/v1/tables")
    assert len(rows) == len(whole) == 31
    rows.clear()
    first = client.get("/v1/tables?limit=3").json()
    assert [item["table"] for item in first["items"]] == ["sales.t29", "sales.t28", "sales.t27"]
    assert first["items"] == whole[:3]
    assert len(rows) == 3


def test_settings_of_a_table_name_the_origin_of_each_value(lake):
    _, client, _, _ = lake
    items = {item["setting"]: item for item in client.get("/v1/settings?table=sales.orders").json()["items"]}
    assert items["mode"]["value"] == "compact"
    assert items["mode"]["origin"] == 'lakefold.toml [[tables]] #1 match "sales.*"'
    assert items["small_file_limit"]["origin"].startswith("lakefold.toml [defaults]")
    assert (items["compaction"]["value"], items["compaction"]["text"]) == (True, "true")


def test_a_password_of_the_database_is_shown_nowhere(tmp_path):
    context = context_at(tmp_path)
    secret = context.config.database.model_copy(update={"url": type(context.config.database.url)("pg://u:hunter2@h/d")})
    hidden = replace(context, config=replace(context.config, database=secret))
    with client_of(hidden) as client:
        text = client.get("/v1/settings").text
    assert "hunter2" not in text
    assert "u:***@h" in text
    context.store.close()


def test_replaced_files_are_listed_by_the_day_of_their_deletion(lake, monkeypatch):
    from service.control.store import DeletionDay

    context, client, _, _ = lake
    day = DeletionDay(table="sales.orders", day=datetime(2026, 3, 1).date(), files=3, bytes=4096)
    asked = []
    monkeypatch.setattr(context.store, "deletion_days", lambda tables: asked.append(tables) or [day])
    assert client.get("/v1/cleaning").json()["items"] == [
        {"table": "sales.orders", "day": "2026-03-01", "files": 3, "bytes": 4096}
    ]
    assert asked == [{timedelta(days=7): ["sales.orders"]}]


def test_a_trend_has_points_oldest_first_up_to_now_and_the_changes_of_a_week_and_a_month(lake):
    context, client, table, _ = lake
    store = context.store
    assert client.get("/v1/tables/sales.orders/trend").json()["trends"] == [], "one point is no trend"
    before = store.last_scan(table.name)
    for days in (15, 6, 3):
        assert store.record_trends()
        sql(store.url, f"UPDATE trend SET at_ms = at_ms - {days * 86_400_000}")
    store.record_scan(replace(before, taken_at=datetime.now(UTC), files=4, small_files=1, reducible_files=0))
    for path, name in (("/v1/tables/sales.orders/trend", table.name), ("/v1/trend", None)):
        trend, kept = client.get(path).json(), store.trend(name)
        assert [point["files"] for point in trend["points"]] == [before.files] * 3 + [4]
        assert trend["points"][-1]["reducible_share"] == 0.0
        week, month = trend["trends"]
        assert (week["days"], month["days"], week["files_before"], week["files"]) == (7, 30, before.files, 4)
        assert (week["small_share"], week["rewritten_bytes"], week["freed_bytes"]) == (0.25, 0, 0)
        assert [datetime.fromisoformat(told["since"]) for told in (month, week)] == [kept[0].at, kept[1].at]
    status, shown = (client.get(path).json()["trends"] for path in ("/v1/status", "/v1/tables/sales.orders"))
    assert [told["files"] for told in status] == [told["files"] for told in shown] == [4, 4]
