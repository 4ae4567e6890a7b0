# SPDX-License-Identifier: Apache-2.0
"""A home with toy tables, the daemon there, and what storage, database and metrics tell of its work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from daemon_toys import write_config
from toys.timeline import ToyFormat, manifest

from lake.model import TableRef
from lake.plan import PlanState
from service.control.config.loader import load_config
from service.control.planning import scan
from service.control.planning.decision_summary import explanation_document
from service.control.store import Store
from service.server.daemon.process import Daemon


def daemon_at(home: Path, role: str = "all", **settings: Any) -> Daemon:
    """A daemon that does not run yet; ``settings`` are those of ``write_config``."""
    return Daemon(load_config(write_config(home, **settings)), role)


def table_at(home: Path, name: str = "t1") -> TableRef:
    """The table as its format finds it."""
    return next(ToyFormat().discover(str(home / "lake" / name)))


def live_files(home: Path, name: str = "t1") -> dict[str, int]:
    """Path → bytes of the table's live files, from storage."""
    base = home / "lake" / name
    return {item["path"]: (base / item["path"]).stat().st_size for item in manifest(table_at(home, name))["files"]}


def files_on_disk(home: Path, name: str = "t1") -> set[str]:
    """The paths of all files that the table's directory holds."""
    base = home / "lake" / name
    return {str(path.relative_to(base)) for path in base.rglob("*.parquet")}


def explained(daemon: Daemon) -> set[tuple[str, str]]:
    """Reasons, and what changes them, that ``tables explain`` prints of the table ``t1``."""
    table = daemon.scheduler._catalog.find("t1")
    lines = explanation_document(table, scan.explain_table(daemon.store, table), files=False)["items"]
    return {(line["text"], line["setting"]) for line in lines}


def value(daemon: Daemon, name: str, **labels: str) -> float | None:
    """What a scrape would see of the metric ``lakefold_<name>``; None while it has no such sample."""
    return daemon.metrics.registry.get_sample_value(f"lakefold_{name}", labels)


def completed(store: Store, count: int = 1) -> Callable[[], bool]:
    """Whether so many plans are completed, to wait for."""
    return lambda: store.figures().count(PlanState.COMPLETED) >= count
