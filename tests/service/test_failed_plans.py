# SPDX-License-Identifier: Apache-2.0
"""A plan that failed is not made again as it was: what is left alone for it, what is said, and what lifts that."""

import dataclasses
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from daemon_toys import write_config
from databases import store_at
from sqlalchemy import create_engine, text
from toy_homes import explained
from toys import timeline
from toys.timeline import ToyFormat
from toys.timeline_tables import create

from lake.errors import Rejected, TableRefused, Transient
from lake.plan import PlanState
from service.control.config import table_settings
from service.control.config.loader import load_config
from service.control.store.views import ErrorClass
from service.server.daemon.process import Daemon

pytestmark = pytest.mark.slow


UNREADABLE = "the table's merger can't be run"


class Home:
    """One toy table whose every rewrite fails, with a database and a configuration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ref = create(path / "lake" / "t1", name="t1")
        self.url = f"sqlite:///{path}/lakefold.db"
        self.store = store_at(path)
        self.settings: dict[str, object] = {"max_attempts": 2, "backoff": "100ms", "backoff_max": "100ms"}

    def scan(self) -> list[str]:
        """Scan once and run what is planned; the ids of the new plans."""
        known = {plan.plan_id for plan in self.store.plans()}
        with Daemon(load_config(write_config(self.path, policy=self.settings)), "all") as daemon:
            daemon.run_once()
        return [plan.plan_id for plan in self.store.plans() if plan.plan_id not in known]

    def explain(self) -> set[tuple[str, str]]:
        """Reasons and settings that ``tables explain`` prints."""
        with Daemon(load_config(write_config(self.path, policy=self.settings)), "scheduler") as daemon:
            return explained(daemon)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def failing(toys: ToyFormat, error: Exception) -> None:
    def fail() -> None:
        raise error

    toys.hooks["rewrite"] = fail


@pytest.mark.parametrize("error", [Rejected(UNREADABLE), Transient(UNREADABLE)], ids=["rejected", "attempts"])
def test_a_failed_plan_is_not_planned_again_unchanged_and_explain_gives_the_reason(home, toys, error):
    failing(toys, error)
    (failed,) = home.scan()
    assert home.store.plan(failed).state is PlanState.FAILED
    assert home.scan() == []
    assert home.scan() == []
    times = "once" if isinstance(error, Rejected) else "2 times"
    expected = f"failed {times} in plan {failed}: {UNREADABLE}; to try again: lakefold plans retry {failed}"
    assert home.explain() == {(expected, "lakefold resume")}
    scan = home.store.last_scan("t1")
    assert scan.skipped["failed"] == 6
    assert scan.reducible_files == 6, "it is still worth a plan"


@pytest.mark.parametrize("lift", ["inputs", "settings", "write options", "version", "retry", "resume"])
def test_a_failed_plan_is_planned_again_after_a_change_or_a_request(home, toys, monkeypatch, lift):
    failing(toys, Rejected(UNREADABLE))
    (failed,) = home.scan()
    assert home.scan() == []
    toys.hooks.clear()
    if lift == "inputs":
        document = timeline.manifest(home.ref)
        for item in document["files"]:
            log = f"{item['file_id'].replace('/', '-')}.log.parquet"
            path = Path(home.ref.location) / item["path"]
            pq.write_table(pq.read_table(path).slice(0, 0), path.with_name(log))
            item["logs"] = [log]
        timeline.publish(home.ref, {**document, "number": document["number"] + 1, "plan_id": None})
    elif lift == "settings":
        home.settings["verification"] = "footer"
    elif lift == "write options":
        other = dataclasses.replace(home.ref, write_options={"merger": "another"})
        monkeypatch.setattr(toys, "discover", lambda location: iter([other]))
    elif lift == "version":
        monkeypatch.setattr(table_settings, "__version__", "99")
    elif lift == "retry":
        home.store.retry(failed, "ada")
    else:
        home.store.resume("t1", "ada")
    again = home.scan()
    assert len(again) == (0 if lift == "retry" else 1)
    assert home.store.figures().count(PlanState.COMPLETED) == 1


def test_files_of_a_plan_whose_table_was_refused_are_planned_again_once_it_is_accepted(home, toys):
    """A table is refused, for example, while its writer builds an index of Hudi's metadata table."""
    failing(toys, TableRefused("an index is being built"))
    (refused,) = home.scan()
    plan = home.store.plan(refused)
    assert (plan.state, plan.error) == (PlanState.CANCELLED, "an index is being built")
    assert plan.error_class is ErrorClass.REJECTED, "no writer was faster"
    toys.hooks.clear()
    (again,) = home.scan()
    assert home.store.plan(again).state is PlanState.COMPLETED


def test_a_plan_out_of_attempts_is_tried_again_after_a_day(home, toys):
    failing(toys, Transient("connection refused"))
    (failed,) = home.scan()
    assert home.scan() == []
    engine = create_engine(home.url)
    with engine.begin() as connection:
        day = {"ms": 86_400_000}
        connection.execute(text("UPDATE plan SET finalized_at_ms = finalized_at_ms - :ms"), day)
    engine.dispose()
    toys.hooks.clear()
    assert len(home.scan()) == 1
    assert home.store.plan(failed).state is PlanState.FAILED


def test_new_files_are_planned_without_the_failed_ones(home, toys):
    failing(toys, Rejected(UNREADABLE))
    (failed,) = home.scan()
    toys.hooks.clear()
    document = timeline.manifest(home.ref)
    base = Path(home.ref.location)
    old = [item["path"] for item in document["files"]]
    new = []
    for item in [item for item in document["files"] if item["partition"] == "dt=0"][:2]:
        path = f"{item['partition']}/new-{len(new)}.parquet"
        rows = pq.read_table(base / item["path"])
        pq.write_table(rows, base / path)
        new.append({**item, "path": path, "file_id": path, "bytes": (base / path).stat().st_size})
    files = [*document["files"], *new]
    timeline.publish(home.ref, {**document, "number": document["number"] + 1, "plan_id": None, "files": files})
    (made,) = home.scan()
    assert home.store.plan(made).input_files == 2
    assert {item["path"] for item in timeline.manifest(home.ref)["files"]} >= set(old)
    assert home.store.plan(failed).error == UNREADABLE
