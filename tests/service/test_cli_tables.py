# SPDX-License-Identifier: Apache-2.0
"""The command line on a real Hudi table: explain, request, dry run, cancel."""

import re
import threading
from collections.abc import Sequence
from datetime import timedelta

import pytest
from hudi_cli import ONE, TWO, on_disk

from service.control.config.loader import load_config
from service.control.leadership import SCAN_ROLE
from service.control.planning.requests import serve_request

pytestmark = pytest.mark.spark


def test_explain_accounts_for_every_file_and_its_sums_are_the_tables(lakefold):
    files = on_disk(lakefold.base)
    lakefold("plans", "request", "orders", "-p", ONE)
    *lines, total = lakefold.json("tables", "explain", "orders")
    assert {(line["partition"], line["reason"]): line["files"] for line in lines} == {
        (ONE, "held"): 2,
        (TWO, "chosen"): 2,
    }
    assert (total["files"], total["bytes"]) == (len(files), sum(files.values()))
    assert (sum(line["files"] for line in lines), sum(line["bytes"] for line in lines)) == (
        total["files"],
        total["bytes"],
    )
    *each, total = lakefold.json("tables", "explain", "orders", "--files")
    assert {entry["path"]: entry["bytes"] for entry in each} == files
    assert (total["files"], total["bytes"]) == (len(files), sum(files.values()))
    only = lakefold.json("tables", "explain", "orders", "--partition", TWO)
    assert [entry["files"] for entry in only] == [2, 2]
    text = lakefold("tables", "explain", "orders")
    assert "live plan" in text
    assert f"{sum(files.values())} bytes" in text
    assert lakefold("tables", "explain", "orders", "--files").count(".parquet") == len(files)
    assert "did you mean" in lakefold.problem("tables", "explain", "orders", "-p", "dt=2026-01-03", expect=10)["detail"]


def test_a_file_above_the_limit_is_left_alone_by_that_setting(lakefold):
    answer = lakefold.json("plans", "request", "orders", "-n", "--set", "small_file_limit=1KiB")[0]
    assert [(e["reason"], e["setting"], e["files"], e["partitions"]) for e in answer["reasons"]] == [
        ("above_limit", "small_file_limit", 4, 2)
    ]


def test_a_dry_run_prints_the_exact_plan_and_stores_none(lakefold):
    answer = lakefold.json("plans", "request", "orders", "-n")[0]
    assert answer["outcome"] == "dry_run"
    assert answer["plan_ids"] == []
    groups = answer["plans"][0]["groups"]
    planned = {file["path"]: file["bytes"] for group in groups for file in group["files"]}
    assert planned == on_disk(lakefold.base)
    assert [(group["partition"], group["input_files"], group["output_files"]) for group in groups] == [
        (ONE, 2, 1),
        (TWO, 2, 1),
    ]
    text = lakefold("plans", "request", "orders", "--dry-run", "--files")
    assert all(path in text for path in planned)
    assert "Nothing was created" in lakefold.error
    assert lakefold.json("plans", "list") == []
    lakefold("plans", "request", "orders")
    stored = lakefold.json("plans", "show", lakefold.json("plans", "list")[0]["plan_id"])[0]
    assert (stored["input_files"], stored["input_bytes"]) == (4, sum(planned.values()))


def test_a_request_plans_free_partitions_and_exits_11_only_if_none_is_free(lakefold):
    first = lakefold.json("plans", "request", "orders", "-p", ONE)[0]
    assert (first["outcome"], len(first["plan_ids"])) == ("planned", 1)
    taken = lakefold.problem("plans", "request", "orders", "-p", ONE, expect=11)
    assert taken["holders"] == {ONE: first["plan_ids"][0]}
    assert first["plan_ids"][0] in taken["detail"]
    second = lakefold.json("plans", "request", "orders")[0]
    assert second["plans"][0]["groups"][0]["partition"] == TWO
    assert second["holders"] == {ONE: first["plan_ids"][0]}
    both = lakefold.problem("plans", "request", "orders", expect=11)
    assert set(both["holders"].values()) == {*first["plan_ids"], *second["plan_ids"]}
    assert len(lakefold.json("plans", "list")) == 2
    assert lakefold.problem("plans", "request", "orders", "-p", "dt=2027", expect=10)["partition"] == "dt=2027"


def test_nothing_to_do_is_an_answer_with_reasons(lakefold):
    answer = lakefold.json("plans", "request", "orders", "--set", "min_input_files=3")[0]
    assert (answer["outcome"], answer["plan_ids"]) == ("nothing", [])
    assert [(reason["reason"], reason["setting"]) for reason in answer["reasons"]] == [("few_files", "min_input_files")]
    text = lakefold("plans", "request", "orders", "--set", "min_input_files=3")
    assert "Nothing to do for sales.orders; the table has 4 files" in text
    assert "min_input_files" in text


def test_a_table_in_mode_observe_is_refused_by_that_setting_but_may_be_tried_dry(lakefold):
    refused = lakefold.problem("plans", "request", "watched", expect=12)
    assert 'set [[tables]] match = "watched" mode = "compact" concurrency = ' in refused["detail"]
    assert refused["mode"] == "observe"
    assert len(lakefold.json("plans", "request", "watched", "-n")[0]["plans"]) == 1


def test_paused_and_halted_tables_are_refused_until_resumed(lakefold):
    lakefold("pause", "orders")
    assert "is paused" in lakefold.problem("plans", "request", "orders", expect=12)["detail"]
    lakefold("resume", "orders")
    lakefold("pause")
    assert "lakefold is paused" in lakefold.problem("plans", "request", "orders", expect=12)["detail"]
    assert lakefold.json("status")[0]["paused"] is True
    lakefold("resume")
    plan = lakefold.json("plans", "request", "orders")[0]["plan_ids"][0]
    store = lakefold.store
    claim = store.claim("test")
    assert claim is not None
    store.fail(claim, "Integrity: a row is missing", halt=True)
    store.close()
    assert (
        "Integrity: a row is missing; once the cause is removed: lakefold resume"
        in lakefold.problem("plans", "request", "orders", expect=12)["detail"]
    )
    assert lakefold.json("status")[0]["halted_tables"] == ["sales.orders"]
    assert "halted" in lakefold("tables", "list")
    assert lakefold.json("plans", "watch", plan, expect=1)[-1]["state"] == "failed"
    lakefold("resume", "orders")
    lakefold("plans", "retry", plan)
    assert lakefold.json("plans", "show", plan)[0]["state"] == "requested"


def test_a_plan_is_shown_by_a_unique_beginning_cancelled_and_watched_to_its_end(lakefold):
    plan = lakefold.json("plans", "request", "orders")[0]["plan_ids"][0]
    assert plan in lakefold("plans", "show", plan[:12])
    lakefold("plans", "list", "--exit-code", expect=4)
    lakefold("status", "--exit-code", expect=4)
    assert lakefold.json("plans", "cancel", plan, "--reason", "not now")[0]["state"] == "cancelled"
    assert lakefold.json("plans", "watch", plan, expect=3)[-1]["state"] == "cancelled"
    assert "not now" in lakefold("plans", "show", plan)
    lakefold("plans", "list", "--exit-code")
    assert "only failed plans can be retried" in lakefold.problem("plans", "retry", plan, expect=1)["detail"]
    assert lakefold.problem("plans", "cancel", "0000", expect=10)["type"] == "docs/problems.md#not-found"
    assert [entry["state"] for entry in lakefold.json("plans", "list", "--state", "cancelled", "-t", "orders")] == [
        "cancelled"
    ]


def test_the_same_idempotency_key_makes_one_request(lakefold):
    first = lakefold.json("plans", "request", "orders", "--idempotency-key", "k")[0]
    assert lakefold.json("plans", "request", "orders", "--idempotency-key", "k")[0] == first
    assert (
        "was used for another request"
        in lakefold.problem("plans", "request", "orders", "-p", ONE, "--idempotency-key", "k", expect=2)["detail"]
    )


def test_a_live_scheduler_answers_and_a_silent_one_is_named(lakefold):
    store, config = lakefold.store, load_config(lakefold.config)
    assert store.acquire_leader(SCAN_ROLE, "daemon-7", timedelta(seconds=60))
    silent = lakefold.problem("plans", "request", "orders", "-n", "--timeout", "0s", expect=1)
    assert "the scheduler (daemon-7) has not answered" in silent["detail"]
    done = threading.Event()

    def scheduler() -> None:
        from service.control.config.catalog import Catalog

        while not done.is_set():
            for request in store.open_requests():
                serve_request(config, store, Catalog(config), request)

    thread = threading.Thread(target=scheduler)
    thread.start()
    try:
        answer = lakefold.json("plans", "request", "orders", "-n")[0]
        assert answer["outcome"] in ("dry_run", "nothing")  # the silent scheduler's request is answered by now, too
        assert lakefold.problem("plans", "request", "watched", expect=12)["mode"] == "observe"
    finally:
        done.set()
        thread.join()
    assert [leader.holder for leader in store.leaders()] == ["daemon-7"]
    store.close()


def test_a_table_that_cannot_be_read_is_shown_with_the_reason_and_the_scan_is_recorded(lakefold):
    (lakefold.base / ".hoodie/hoodie.properties").write_text("hoodie.table.name=x\nhoodie.table.version=42\n")
    (lakefold.base / ".hoodie/.hoodie.properties.crc").unlink(missing_ok=True)
    problem = lakefold.problem("plans", "request", "sales.orders", expect=1)
    assert problem["type"] == "docs/problems.md#rejected"
    assert "42" in problem["detail"]
    listed = {entry["table"]: entry for entry in lakefold.json("tables", "list")}
    assert listed["sales.orders"]["scan"]["outcome"] == "error"
    assert "42" in listed["sales.orders"]["scan"]["error"]


def test_tables_are_listed_and_shown_from_the_last_scan_with_its_age(lakefold):
    listed = {entry["table"]: entry for entry in lakefold.json("tables", "list")}
    assert listed["sales.orders"]["scan"] is None
    assert "Not scanned yet" in lakefold("tables", "show", "orders")
    lakefold("plans", "request", "orders", "-n")
    sizes = on_disk(lakefold.base)
    entry = next(e for e in lakefold.json("tables", "list") if e["table"] == "sales.orders")
    assert (entry["mode"], entry["scan"]["files"], entry["scan"]["bytes"]) == ("compact", 4, sum(sizes.values()))
    assert entry["scan"]["reducible_bytes"] == sum(sizes.values())
    lakefold("tables", "list", "--exit-code", expect=4)
    text = lakefold("tables", "show", "orders")
    assert "4 files" in text
    assert "← small_file_limit 64.0 KiB" in text
    assert "Scanned" in text
    shown = lakefold.json("tables", "show", "orders")[0]
    assert sum(shown["last_good_scan"]["histogram"]) == 4
    assert shown["policy"]["small_file_limit"] == "64KiB"
    assert shown["trends"] == []
    lakefold.store.record_trends()
    lakefold("plans", "request", "orders", "-n")
    same = "reducible 100 % → 100 %, small 100 % → 100 %, files 4 → 4; 0 B rewritten, 0 B freed"
    assert re.search(rf"^since [\d-]+ [\d:]+ UTC: {same}$", lakefold("tables", "show", "orders"), re.MULTILINE)


def test_an_unknown_table_exits_10_with_the_nearest_name_from_every_command(lakefold):
    commands: Sequence[Sequence[str]] = (
        ("tables", "show"),
        ("tables", "explain"),
        ("plans", "request"),
        ("verify",),
        ("clean",),
        ("pause",),
        ("resume",),
        ("config", "show"),
    )
    for command in commands:
        problem = lakefold.problem(*command, "sales.order", expect=10)
        assert "did you mean 'sales.orders'?" in problem["detail"], command


@pytest.mark.parametrize("why", ["setting", "index", "unreadable"])
def test_scan_config_check_explain_and_dry_run_refuse_the_same_tables(lakefold, why):
    properties = lakefold.base / ".hoodie/hoodie.properties"
    assert len(lakefold.json("config", "check")) == 1
    if why == "setting":
        text = lakefold.config.read_text()
        assert 'concurrency = "single_writer"' in text
        lakefold.config.write_text(text.replace('concurrency = "single_writer"', 'concurrency = "occ"'))
        expected = 'concurrency = "occ" needs the lock that the writers use'
    elif why == "index":
        properties.write_text(properties.read_text() + "hoodie.index.type=BUCKET\n")
        expected = "hoodie.properties hoodie.index.type = BUCKET"
    else:
        for instant in (lakefold.base / ".hoodie/timeline").glob("*.commit"):
            instant.write_bytes(b"torn")
        expected = "can't be decoded"
    properties.with_name(".hoodie.properties.crc").unlink(missing_ok=True)
    (found,) = lakefold.json("config", "check", expect=3)
    text = found["refused"].pop("sales.orders")
    assert (found["refused"], found["problems"]) == ({}, [])
    assert expected in text
    assert "), but 1 table can't be used" in lakefold("config", "check", expect=3)
    assert text in lakefold.error
    assert text in lakefold.problem("tables", "explain", "sales.orders", expect=1)["detail"]
    assert text in lakefold.problem("plans", "request", "sales.orders", "--dry-run", expect=1)["detail"]
    assert lakefold.store.last_scan("sales.orders").error == text
