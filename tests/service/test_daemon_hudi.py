# SPDX-License-Identifier: Apache-2.0
"""The real daemon as a process on a real Hudi table: each metric's value equals a count made without lakefold."""

import json
import re
import shutil
import signal
import sqlite3
import subprocess
import time
import urllib.request
from contextlib import closing, suppress

import pytest
from harness import Installation, stop_group
from hudi_tables import copy, rows, small_files, table_rows, write
from kept_tables import kept
from prometheus_client.parser import text_string_to_metric_families
from support import needs_server
from waiting import wait_for

from lake.plan import PlanState, Step
from lake.version import __version__
from service.server.observability.metric_specs import SPECS
from service.server.observability.scan_gauges import BUCKET_EDGES_BYTES

#: the database has the names that earlier releases gave these steps
_STORED_STEPS = {Step.FIND_COMMIT: "ask", Step.VERIFY: "receipt"}

pytestmark = pytest.mark.spark

COMMITS, PARTITIONS = 3, 2
SMALL_FILE_LIMIT = 1 << 20
TABLE = {"table": "t.trips", "format": "hudi"}
KIND = {**TABLE, "kind": "clustering"}
WORK = {**KIND, "engine": "auto"}


class Served:
    """One daemon on one table, and everything about them that can be counted without lakefold's code."""

    def __init__(self, home, base):
        self.base = base
        self.database = home / "lakefold.db"
        self.installation = Installation(
            home=home,
            url=f"sqlite:///{self.database}",
            tables={"t.trips": base},
            policy={"retention": "1s", "scan_interval": "1s", "small_file_limit": f"{SMALL_FILE_LIMIT}B"},
            daemon={"metrics_interval": "500ms", "clean_interval": "1s", "claim_interval": "500ms"},
        )
        self.log = home / "serve.log"
        self.began = time.time()
        self.first = self.files()
        self.process = None

    def start(self):
        self.process = self.installation.start("serve", log=self.log)
        text = wait_for(lambda: "listening on " in self.log.read_text() and self.log.read_text(), "the daemon up", 120)
        self.url = text.partition("listening on ")[2].split()[0] + "/metrics"

    def files(self):
        """Parquet files of the table in storage: path → bytes."""
        found = {}
        for path in self.base.glob("dt=*/*.parquet"):
            with suppress(FileNotFoundError):  # the cleaner was faster
                found[str(path.relative_to(self.base))] = path.stat().st_size
        return found

    def live(self):
        """Those that are live: the first ones until a replace commit has landed, from then on the others."""
        files = self.files()
        new = {path: size for path, size in files.items() if path not in self.first}
        landed = list((self.base / ".hoodie" / "timeline").glob("*_*.replacecommit"))
        return new if landed else files

    def rows(self, query):
        with closing(sqlite3.connect(self.database, timeout=30)) as connection:
            return connection.execute(query).fetchall()

    def page(self):
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            return answer.read().decode()

    def scrape(self):
        """Metric → {labels: value}; buckets, sums and counts under their own names."""
        found = {}
        for family in text_string_to_metric_families(self.page()):
            for sample in family.samples:
                if sample.name.startswith("lakefold_"):
                    found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        return found

    def expected(self):
        """What the page must say of everything that can be counted; the scans' own counters included."""
        live, rows = self.live(), self.rows
        one = {
            "table_files": (TABLE, len(live)),
            "table_bytes": (TABLE, sum(live.values())),
            "table_small_files": (TABLE, sum(size < SMALL_FILE_LIMIT for size in live.values())),
            "table_small_file_bytes": (TABLE, sum(size for size in live.values() if size < SMALL_FILE_LIMIT)),
            "table_log_files": (TABLE, 0),
            "table_log_bytes": (TABLE, 0),
            "table_partitions": (TABLE, len(list(self.base.glob("dt=*")))),
            "table_file_size_bytes_gcount": (TABLE, len(live)),
            "table_file_size_bytes_gsum": (TABLE, sum(live.values())),
            "table_scan_failed": (TABLE, 0),
            "table_halted": (TABLE, 0),
            "table_paused": (TABLE, 0),
            "table_mode": ({**TABLE, "mode": "compact"}, 1),
            "executor_slots": ({"state": "busy"}, 0),
            "paused": ({}, rows("SELECT count(*) FROM table_state WHERE name = '*' AND paused_at_ms > 0")[0][0]),
            "database_errors_total": ({}, 0),
            "plan_commit_conflicts_total": (TABLE, 0),
            "cleaner_failures_total": ({**TABLE, "reason": "Transient"}, 0),
            "plan_leases_expired_total": ({"format": "hudi"}, 0),
            "plan_retries_total": ({"format": "hudi", "reason": "Transient"}, 0),
        }
        found = {name: {frozenset(labels.items()): value} for name, (labels, value) in one.items()}

        def add(name, labels, value):
            found.setdefault(name, {})[frozenset(labels.items())] = value

        add("executor_slots", {"state": "free"}, 1)
        backlog = live if len(live) == len(self.first) else {}
        add("table_reducible_files", TABLE, len(backlog))
        small = sum(size < SMALL_FILE_LIMIT for size in live.values())
        add("table_residual_files", TABLE, small - len(backlog))
        add("table_reducible_bytes", TABLE, sum(backlog.values()))
        for edge in BUCKET_EDGES_BYTES:
            count = sum(size <= edge for size in live.values())
            add("table_file_size_bytes_bucket", {**TABLE, "le": str(float(edge))}, count)
        add("table_file_size_bytes_bucket", {**TABLE, "le": "+Inf"}, len(live))

        for state in PlanState:
            add("plans", {**KIND, "state": state}, rows(f"SELECT count(*) FROM plan WHERE state = '{state}'")[0][0])
        waiting = "SELECT coalesce(sum(input_bytes), 0) FROM plan WHERE state IN ('requested', 'inflight')"
        add("plan_backlog_bytes", KIND, rows(waiting)[0][0])
        for outcome in ("completed", "failed", "cancelled"):
            ended = rows(f"SELECT count(*) FROM plan_event WHERE to_state = '{outcome}'")[0][0]
            add("plans_finished_total", {**KIND, "outcome": outcome}, ended)
        completed = rows("SELECT count(*) FROM plan WHERE state = 'completed'")[0][0]
        add("plan_wait_seconds_count", {"format": "hudi", "kind": "clustering"}, completed)
        for step in Step:
            labels = {"format": "hudi", "kind": "clustering", "engine": "auto", "stage": step}
            add("plan_stage_duration_seconds_count", labels, completed)
        replaced = self.first if completed else {}
        written = live if completed else {}
        for name, files in (("input", replaced), ("output", written)):
            add(f"rewrite_{name}_files_total", WORK, len(files))
            add(f"rewrite_{name}_bytes_total", WORK, sum(files.values()))

        kept = "SELECT count(*), coalesce(sum(bytes), 0) FROM superseded_version WHERE deleted_at_ms IS NULL"
        add("superseded_files", TABLE, rows(kept)[0][0])
        add("superseded_bytes", TABLE, rows(kept)[0][1])
        gone = {path: size for path, size in self.first.items() if path not in self.files()}
        add("cleaner_deleted_files_total", TABLE, len(gone))
        add("cleaner_deleted_bytes_total", TABLE, sum(gone.values()))
        leading = {role for (role,) in rows("SELECT role FROM leader")}
        for role in ("scan", "clean", "sweep"):
            add("leader", {"role": role}, int(role in leading))

        scans = [json.loads(record) for (record,) in rows("SELECT record FROM scan_history")]
        add("planner_runs_total", {"format": "hudi", "outcome": "ok"}, len(scans))
        add("planner_runs_total", {"format": "hudi", "outcome": "error"}, 0)
        add("planner_run_duration_seconds_count", {"format": "hudi"}, len(scans))
        for outcome in ("ok", "error"):
            add("planner_written_scans_total", {"format": "hudi", "outcome": outcome}, 0)
        for name in ("planner_written_scan_duration_seconds_count", "planner_written_scan_partitions_total"):
            add(name, {"format": "hudi"}, 0)
        # Both partitions of this table always share their reasons.
        for reason in {reason for scan in scans for reason in scan["skipped"]}:
            times = sum(reason in scan["skipped"] for scan in scans)
            add("planner_partitions_skipped_total", {"reason": reason}, PARTITIONS * times)
        return {f"lakefold_{name}": values for name, values in found.items()}

    def agree(self, stage):
        """Scrape until the page, refreshed every half second, equals the counts; the page then."""
        deadline = time.monotonic() + 60
        while True:
            expected = self.expected()
            scraped = self.scrape()
            differing = {
                name: {"scraped": scraped.get(name, {}), "counted": values}
                for name, values in expected.items()
                if not values.items() <= scraped.get(name, {}).items()
            }
            # A scan that ended in between is in one of the two only.
            if not differing and expected == self.expected():
                return expected, scraped
            assert time.monotonic() < deadline, f"{stage}: {differing}\n{self.log.read_text()[-3000:]}"
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.1)

    def check_times(self, scraped):
        """The metrics that are times, against this test's own clock and the database's rows."""

        def value(name, **labels):
            return scraped[f"lakefold_{name}"][frozenset(labels.items())]

        now = time.time()
        for name, labels in (
            ("table_snapshot_timestamp_seconds", TABLE),
            ("planner_last_success_timestamp_seconds", {}),
            ("executor_last_heartbeat_timestamp_seconds", {}),
            ("cleaner_last_success_timestamp_seconds", {}),
            ("stored_metrics_timestamp_seconds", {}),
        ):
            assert self.began - 1 <= value(name, **labels) <= now + 1, name
        newest = self.rows("SELECT max(taken_at_ms) FROM scan_history")[0][0] / 1000
        assert newest - 10 <= value("table_snapshot_timestamp_seconds", **TABLE) <= newest + 0.001
        assert 0 < value("planner_run_duration_seconds_sum", format="hudi") < now - self.began + 1
        plans = self.rows("SELECT created_at_ms, claimed_at_ms, milliseconds FROM plan WHERE state = 'completed'")
        for created, claimed, milliseconds in plans:
            waited = value("plan_wait_seconds_sum", format="hudi", kind="clustering")
            assert waited == pytest.approx((claimed - created) / 1000, abs=2)
            recorded = json.loads(milliseconds)
            for step in Step:
                took = value(
                    "plan_stage_duration_seconds_sum", format="hudi", kind="clustering", engine="auto", stage=step
                )
                if step is not Step.RECORD:  # a plan can't record how long its recording took
                    stored = _STORED_STEPS.get(step, step)
                    assert took == pytest.approx(recorded[stored] / 1000, abs=0.05), step
        assert {dict(labels)["version"] for labels in scraped["lakefold_build_info"]} == {__version__}

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def served(spark, tmp_path):
    def build(base):
        small_files(spark, base, commits=COMMITS, partitions=PARTITIONS)

    base = copy(kept("served", "trips", build, __file__), tmp_path / "lake" / "trips")
    served = Served(tmp_path, base)
    yield served
    if served.process is not None and served.process.poll() is None:
        stop_group(served.process)


def only_ours(log):
    """Check that every line of a daemon's output is one that lakefold wrote."""
    line = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (INFO|WARNING|ERROR) (service|executors|lake|planner)[\w.]*: .+")
    assert [text for text in log.read_text().splitlines() if not line.fullmatch(text)] == []


def test_every_metric_equals_an_independent_count_before_and_after_a_compaction_and_a_clean(served, spark):
    rows = table_rows(spark, served.base)
    assert len(served.first) == COMMITS * PARTITIONS
    run = served.installation.run
    run("pause")
    served.start()
    seen, pages = {}, []

    counted, scraped = served.agree("before")
    served.check_times(scraped)
    seen |= scraped
    pages.append(served.page())
    assert counted["lakefold_table_files"][frozenset(TABLE.items())] == COMMITS * PARTITIONS
    assert counted["lakefold_paused"] == {frozenset(): 1}

    # One plan is let through; the pause that follows keeps the cleaner from the files it replaced.
    run("resume")
    wait_for(lambda: served.rows("SELECT 1 FROM plan WHERE state <> 'requested'"), "a plan claimed", 120)
    run("pause")
    wait_for(lambda: served.rows("SELECT 1 FROM plan WHERE finalized_at_ms IS NOT NULL"), "the plan ended", 240)
    assert served.rows("SELECT state, error FROM plan") == [("completed", None)]
    assert set(served.first) < set(served.files()), "nothing may be deleted while the service is paused"
    counted, scraped = served.agree("after the compaction")
    served.check_times(scraped)
    seen |= scraped
    pages.append(served.page())
    assert counted["lakefold_table_files"][frozenset(TABLE.items())] == PARTITIONS
    assert counted["lakefold_superseded_files"][frozenset(TABLE.items())] == COMMITS * PARTITIONS

    run("resume")
    wait_for(lambda: not set(served.first) & set(served.files()), "the superseded files deleted", 240)
    counted, scraped = served.agree("after the clean")
    served.check_times(scraped)
    seen |= scraped
    pages.append(served.page())
    assert counted["lakefold_superseded_bytes"][frozenset(TABLE.items())] == 0
    assert counted["lakefold_cleaner_deleted_files_total"][frozenset(TABLE.items())] == COMMITS * PARTITIONS

    run("verify", "t.trips")
    assert served.stop() == 0, served.log.read_text()[-3000:]
    only_ours(served.log)
    assert served.rows("SELECT * FROM leader") == []
    assert table_rows(spark, served.base) == rows

    # No name of the table of metrics went unseen, but for what this run must not have.
    without = {
        "lakefold_plan_oldest_requested_timestamp_seconds",
        *("lakefold_plan_proposals", "lakefold_plan_oldest_proposal_timestamp_seconds"),
        *("lakefold_work_budget", "lakefold_work_used"),
        *(name for name in SPECS if name.startswith("lakefold_table_slo_")),
    }
    bases = {name.removesuffix(end) for name in seen for end in ("_bucket", "_sum", "_count", "_gsum", "_gcount", "")}
    assert set(SPECS) - bases == without

    promtool = shutil.which("promtool")
    if promtool is None:
        needs_server("promtool not found; tests/servers.sh installs it (Debian package prometheus)")
    for page in pages:
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.shown_by(
    "tests/service/test_daemon_hudi.py::test_every_metric_equals_an_independent_count_before_and_after_a_compaction_and_a_clean"
)
def test_a_merge_on_read_table_is_compacted_and_clustered_by_one_daemon(spark, tmp_path):
    def build(base):
        for commit in range(2):
            write(rows(spark, commit * 100, commit * 100 + 100).coalesce(1), base, merge_on_read=True)
        for version in range(1, 3):
            changed = rows(spark, 0, 200, version=version).where("id % 3 = 0").coalesce(1)
            write(changed, base, "upsert", merge_on_read=True)

    base = copy(kept("served merge on read", "trips", build, __file__), tmp_path / "lake" / "trips")
    before = table_rows(spark, base)
    installation = Installation(
        home=tmp_path,
        url=f"sqlite:///{tmp_path}/lakefold.db",
        tables={"t.trips": base},
        policy={"retention": "1s", "scan_interval": "1s", "compact_log_files": 2},
        daemon={"clean_interval": "1s", "claim_interval": "500ms"},
    )
    (dry,) = installation.json("plans", "request", "t.trips", "--dry-run")
    assert [(plan["kind"], plan["output_files"], plan["log_files"]) for plan in dry["plans"]] == [("compaction", 4, 8)]
    assert dry["text"].startswith("would create 1 plan: the logs of 4 slices into new base files (")
    (only,) = installation.json("plans", "request", "t.trips", "--dry-run", "--kind", "clustering")
    assert [(plan["kind"], plan["output_files"], plan["log_files"]) for plan in only["plans"]] == [("clustering", 2, 8)]
    log = tmp_path / "serve.log"
    process = installation.start("serve", log=log)

    def ended():
        assert process.poll() is None, log.read_text()[-3000:]
        plans = installation.json("plans", "list")
        done = [(plan["kind"], plan["files_before"], plan["files_after"]) for plan in reversed(plans)]
        files = list(base.glob("dt=*/*.parquet")) + list(base.glob("dt=*/.*.log.*"))
        return all(plan["state"] == "completed" for plan in plans) and len(files) == 2 and done

    try:
        done = wait_for(ended, "compacted, clustered and cleaned", 240)
        assert done == [("compaction", 4, 4), ("clustering", 4, 2)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()[-3000:]
    finally:
        stop_group(process)
    installation.run("verify", "t.trips")
    assert table_rows(spark, base) == before
