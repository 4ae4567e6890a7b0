# SPDX-License-Identifier: Apache-2.0
"""Figures that several places show agree, and a budget that is too small is named: by commands, page, API, metrics."""

import json
import os
import re
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from api_toys import client_of, context_at
from databases import store_at
from hudi_by_hand import T1, ByHand
from metric_inputs import commit_of, figures_of, published
from metric_inputs import value as sample
from store_plans import sql
from web_pages import read

from lake.plan import Claim, Step
from service.cli import main
from service.control.config.catalog import Catalog
from service.control.planning.scan import scan_and_plan
from service.control.store import ProcessFacts, Store
from service.server.observability.metrics import Metrics
from service.text import parse_timestamp

FILES = 20
EXECUTOR = ProcessFacts(name="e", role="executor", host="h", version="1", slots=1, spark="running")


class Lake:
    """A table ``orders`` of small files, one of them larger, its configuration, its database, commands and pages."""

    def __init__(self, home: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self.store, self._capsys = home, store, capsys
        self.base = home / "lake/orders"
        self.base.mkdir(parents=True)
        made = self.made = ByHand(self.base)
        names = [made.base_file(T1, f"p/f-{number}") for number in range(FILES)]
        with (self.base / "p" / names[0]).open("ab") as file:
            file.write(b"x" * 100_000)
        made.complete(T1, "deltacommit", *names)
        for path in (*self.base.glob("p/*.parquet"), *self.base.glob(".hoodie/*.deltacommit")):
            os.utime(path, (1.7e9, 1.7e9))
        self.configure()

    def configure(self, *settings: str, sections: str = "") -> None:
        rule = ('match = "orders"', 'mode = "compact"', 'concurrency = "single_writer"', *settings)
        rules = '[[sources]]\npath = "lake"\n' + sections + "\n[[tables]]\n" + "\n".join(rule)
        self.context = context_at(self.home, rules=rules)

    def scan(self) -> Any:
        table = Catalog(self.context.config).tables()[0]
        return scan_and_plan(self.context.config, self.store, table, actor="test")

    def sizes(self) -> list[int]:
        return [path.stat().st_size for path in self.base.glob("p/*.parquet")]

    def text(self, *command: str) -> str:
        code = main.run(command)
        out, err = self._capsys.readouterr()
        assert code == 0, err
        return out + err

    def json(self, *command: str) -> Any:
        found = [json.loads(line) for line in self.text(*command, "--json").splitlines()]
        return found[0] if len(found) == 1 else found

    @contextmanager
    def client(self) -> Iterator[Any]:
        self.context.lake_cache.refresh()
        with client_of(self.context) as client:
            yield client

    def metric(self, name: str) -> float:
        return sample(published(Metrics("all"), self.store), name, table="orders", format="hudi")

    def claim(self) -> Claim:
        claim = self.store.claim("host-1")
        assert claim is not None
        return claim

    def complete(self, claim: Claim, milliseconds: dict[Step, int]) -> None:
        for step, spent in milliseconds.items():
            self.store.record_step(claim, step, milliseconds=spent)
        spent_by_step = {step.value: spent for step, spent in milliseconds.items()}
        self.store.complete(claim, commit_of(claim.plan), figures_of(claim.plan), spent_by_step)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Lake]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("LAKEFOLD_")]:
        monkeypatch.delenv(name)
    store = store_at(tmp_path)
    yield Lake(tmp_path, store, capsys)
    store.close()


TOO_SMALL = (
    ('budget_bytes_per_hour = "1KiB"', "", "budget_bytes_per_hour", "1.0 KiB"),
    ("budget_cpu_hours_per_day = 0.001", "", "budget_cpu_hours_per_day", "0.001, which allows 0 B"),
    ("", '[work]\nbytes_per_day = "1KiB"', "work.bytes_per_day", "1.0 KiB"),
)


@pytest.mark.parametrize(("setting", "section", "name", "value"), TOO_SMALL)
def test_a_budget_that_is_too_small_is_named_everywhere_and_its_files_stay_reducible(
    lake: Lake, setting: str, section: str, name: str, value: str
) -> None:
    lake.configure(setting, sections=section)
    answer = lake.scan()
    assert (answer.outcome, answer.plan_ids) == ("nothing", ())
    reason = f"over budget: its group would be {sum(lake.sizes()) / 1024:.0f} KiB, more than all of {name} ({value})"
    assert [(line["text"], line["setting"]) for line in answer.reasons] == [(reason, name)]
    told = lake.json("tables", "explain", "orders")[0]
    assert (told["reason"], told["text"], told["setting"], told["files"]) == ("over_budget", reason, name, FILES)
    assert reason in lake.text("tables", "explain", "orders")

    scan = lake.json("tables", "show", "orders")["last_good_scan"]
    assert (scan["reducible_files"], scan["reducible_bytes"]) == (FILES, sum(lake.sizes()))
    assert "20 reducible, 0 residual" in lake.text("tables", "show", "orders")
    assert lake.json("status")["layout"]["compact"]["reducible_share"] == 1
    assert (lake.metric("table_reducible_files"), lake.metric("table_residual_files")) == (FILES, 0)
    assert lake.metric("table_over_budget_slices") == FILES

    words = "20 file slices wait, because their groups are larger than a whole budget"
    (entry,) = lake.json("status")["attention"]
    assert (entry["table"], entry["over_budget_slices"]) == ("orders", FILES)
    assert f"orders: {words}" in lake.text("status")
    warning = f"{name} ({value}) is less than two files just below small_file_limit (600 MiB)"
    assert warning in lake.text("config", "check")
    with lake.client() as client:
        assert f"orders: {words}" in read(client, "/").words
        page = read(client, "/tables/orders?partition=p").words
        assert f"Over budget: {words}" in page
        assert reason in page
        assert client.get("/v1/tables/orders").json()["last_good_scan"]["reducible_files"] == FILES

    lake.configure()
    assert len(lake.scan().plan_ids) == 1
    assert lake.json("status")["attention"] == []


def test_a_table_without_a_budget_has_no_line_for_it(lake: Lake) -> None:
    lake.scan()
    assert lake.metric("table_over_budget_slices") == 0
    assert "budget" not in lake.text("config", "check")


def test_the_median_is_the_size_of_the_middle_files_in_every_place(lake: Lake) -> None:
    lake.scan()
    middle = int(statistics.median(lake.sizes()))
    assert lake.json("tables", "show", "orders")["last_good_scan"]["median_bytes"] == middle
    assert f"median {middle} B" in lake.text("tables", "show", "orders")
    with lake.client() as client:
        assert client.get("/v1/tables").json()["items"][0]["scan"]["median_bytes"] == middle
        for address in ("/", "/tables/orders"):
            titles = [one.get("title") for one in read(client, address).all("data")]
            assert f"{middle:,} bytes" in titles, address
    assert sql(lake.store.url, "SELECT good_median_bytes FROM table_state WHERE name = 'orders'") == [(middle,)]


def test_at_first_is_the_first_scan_wherever_a_figure_is_compared_with_it(lake: Lake) -> None:
    lake.scan()
    # The first stored point of the trend is made after a plan has run already.
    sql(lake.store.url, "UPDATE scan_history SET taken_at_ms = taken_at_ms - 5000")
    lake.complete(lake.claim(), {Step.REWRITE: 10})
    for path in list(lake.base.glob("p/*.parquet"))[1:]:
        path.unlink()
    (lake.base / f".hoodie/{T1}.deltacommit").unlink()
    kept = next(lake.base.glob("p/*.parquet")).name
    lake.made.complete(T1, "deltacommit", kept)
    lake.scan()
    lake.store.record_trends()
    lake.scan()
    status, table = lake.json("status"), lake.json("tables", "show", "orders")
    before = status["layout"]["compact"]["reducible_share_before"]
    assert before == 1
    assert [trend["reducible_share_before"] for trend in status["trends"]] == [before] * 2
    assert [trend["reducible_share_before"] for trend in table["trends"]] == [before] * 2
    assert [trend["files_before"] for trend in table["trends"]] == [FILES] * 2
    assert "reducible 100 % → 0 %" in lake.text("tables", "show", "orders")
    assert "reducible files 100 % → 0 %" in lake.text("status")
    with lake.client() as client:
        assert "0 % 0; 100 % at first" in read(client, "/tables/orders").words
        first, *_ = client.get("/v1/tables/orders/trend").json()["points"]
        assert (first["reducible_share"], first["rewritten_bytes"], first["freed_bytes"]) == (1, 0, 0)
        (lake_first, *_) = client.get("/v1/trend").json()["points"]
        assert lake_first == first


def test_files_that_plans_replaced_are_fewer_files_and_freed_only_once_they_are_deleted(lake: Lake) -> None:
    lake.scan()
    lake.complete(lake.claim(), {Step.REWRITE: 10})
    status = lake.json("status")
    waiting = status["superseded_bytes"]
    assert (status["files_removed"], status["freed_bytes"], waiting > 0) == (FILES - 1, 0, True)
    assert " · 0 B freed · " in lake.text("status")
    due = lake.store.awaiting_deletion(lake.store.table_state("orders").ref)
    lake.store.mark_deleted([version.row_id for version in due])
    status = lake.json("status")
    assert (status["files_removed"], status["freed_bytes"], status["superseded_bytes"]) == (FILES - 1, waiting, 0)
    assert lake.text("status").startswith("19 files fewer · ")
    assert f"{waiting / 1024:.0f} KiB freed" in lake.text("status")
    with lake.client() as client:
        assert re.search(r"19 files fewer .* rewritten \d+ KiB freed", read(client, "/").words)


def test_the_times_of_a_plans_steps_add_up_to_the_time_that_it_took_in_every_place(lake: Lake) -> None:
    lake.scan()
    claim = lake.claim()
    sql(lake.store.url, "UPDATE plan SET claimed_at_ms = claimed_at_ms - 5000")
    lake.complete(claim, {Step.FIND_COMMIT: 400, Step.REWRITE: 2_100, Step.COMMIT: 1_000})
    plan = lake.json("plans", "show", claim.plan.plan_id)
    took = (parse_timestamp(plan["finalized_at"]) - parse_timestamp(plan["claimed_at"])) / timedelta(milliseconds=1)
    assert plan["took_milliseconds"] == pytest.approx(took, abs=1)
    assert sum(plan["milliseconds"].values()) + plan["other_milliseconds"] == plan["took_milliseconds"]
    assert sum(entry["milliseconds"] for entry in plan["figures"]) == plan["took_milliseconds"]
    shown = lake.text("plans", "show", claim.plan.plan_id)
    steps = re.search(
        r"steps +find_commit 400 ms  rewrite 2.1 s  commit 1 s  other ([\d.]+) s; together ([\d.]+) s", shown
    )
    assert steps is not None, shown
    assert 3.5 + float(steps[1]) == pytest.approx(float(steps[2]), abs=0.11)
    assert f"{plan['took_milliseconds']} ms" in shown
    with lake.client() as client:
        page = read(client, f"/plans/{claim.plan.plan_id}").words
        assert f"between the steps, and until the end was recorded {steps[1]} s" in page
        assert f"{steps[2]} s" in read(client, "/plans").words


def test_an_objective_shows_the_missed_time_and_the_budget_of_one_window(lake: Lake) -> None:
    lake.configure('slo_small_file_share = "5%"')
    lake.scan()
    sql(
        lake.store.url,
        "UPDATE table_objective SET judged_at_ms = judged_at_ms - 600000, changed_at_ms = changed_at_ms - 600000",
    )
    lake.scan()
    (one,) = lake.json("tables", "show", "orders")["objectives"]
    missed, allowed = one["missed_seconds_in_window"], one["error_budget_seconds"]
    assert missed == pytest.approx(600, abs=5)
    assert allowed == pytest.approx(28 * 86_400 * 0.01)
    assert one["budget_left"] == pytest.approx(1 - missed / allowed)
    shown = lake.text("tables", "show", "orders")
    assert "in the last 28 d missed for 10 min of 6.72 h allowed (goal 99 %); 98 % of its error budget is left" in shown
    with lake.client() as client:
        assert "10 minof 6.72 h in 28 d (goal 99 %) 98 %" in read(client, "/tables/orders").words


def test_the_oldest_waiting_plan_is_shown_with_its_reason_and_the_time_of_its_next_attempt(lake: Lake) -> None:
    lake.scan()
    name = lake.store.plans()[0].plan_id

    def oldest() -> tuple[Any, str]:
        found = lake.json("status")["oldest_waiting_plan"]
        (line,) = (one for one in lake.text("status").splitlines() if one.startswith("The oldest waiting plan"))
        assert f"The oldest waiting plan, {name[-8:]} of orders, " in line
        with lake.client() as client:
            assert found["reason"] in str([one.get("title") for one in read(client, "/").all("a")])
        return found, line

    found, line = oldest()
    assert (found["plan_id"], found["next_attempt_at"]) == (name, None)
    assert line.endswith("ago and waits for an executor to run.")
    lake.store.register_process(EXECUTOR, timedelta(minutes=1))
    assert oldest()[1].endswith("ago and waits for a free executor.")
    lake.store.pause("orders", "ada")
    assert oldest()[1].endswith("waits until orders is resumed (lakefold resume orders).")
    lake.store.resume("orders", "ada")
    lake.store.requeue(lake.claim(), "no space left on device")
    found, line = oldest()
    at = parse_timestamp(found["next_attempt_at"])
    assert at == lake.store.plan(name).not_before > datetime.now(at.tzinfo)
    assert (found["attempts"], "ago" in line) == (1, False)
    words = r"failed 1 time, the last time with: no space left on device\. It is tried in [\d.]+ s, at "
    assert re.search(words + f"{at:%H:%M:%S} UTC\\.$", line), line


@pytest.mark.parametrize("names", [0, 1000])
def test_lists_and_details_have_the_first_and_the_last_good_scan_of_each_table(
    lake: Lake, names: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above a number of tables the scans of all are read, since a database takes only so many names in a query."""
    monkeypatch.setattr("service.cli.client.local._MAX_NAMES", names)
    lake.configure("")
    lake.scan()
    shown, listed = (lake.json(*command) for command in (("tables", "show", "orders"), ("tables", "list")))
    (entry,) = listed if isinstance(listed, list) else [listed]
    assert entry["first_scan"]["files"] == entry["last_good_scan"]["files"] == FILES
    assert {name: shown[name] for name in ("first_scan", "last_good_scan")} == {
        name: entry[name] for name in ("first_scan", "last_good_scan")
    }
