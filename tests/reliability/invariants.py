# SPDX-License-Identifier: Apache-2.0
"""What must hold for a table and its plan after any crash, checked from outside."""

import json
from pathlib import Path

import hudi
from harness import Installation


def commits_naming(base: Path, plan_id: str) -> list[str]:
    """Completed instants on the table's active timeline whose commit metadata names ``plan_id``."""
    timeline = base / ".hoodie" / "timeline"
    completed = sorted([*timeline.glob("*_*.replacecommit"), *timeline.glob("*_*.commit")])
    return [path.name for path in completed if plan_id.encode() in path.read_bytes()]


def pending_instants(base: Path) -> list[str]:
    """Clustering, compaction and clean instants without a completion."""
    timeline = base / ".hoodie" / "timeline"
    completed = {path.name.split("_")[0] for path in timeline.glob("*_*")}
    begun = {path.name.split(".")[0] for path in timeline.glob("*.requested")}
    return sorted(begun - completed)


def ids_in_hudi_rs(base: Path) -> list[int]:
    """The record ids as the native reader sees the table, sorted."""
    table = hudi.HudiTableBuilder.from_base_uri(str(base)).build()
    return sorted(value for batch in table.read() for value in batch.column("id").to_pylist())


def check_plan_landed_once(installation: Installation, table: str, base: Path, plan_id: str) -> None:
    """The plan is completed, exactly one commit names it, and storage is as the table's commits say."""
    shown = installation.json("plans", "show", plan_id)[0]
    assert shown["state"] == "completed", json.dumps(shown, indent=1)[:3000]
    assert len(commits_naming(base, plan_id)) == 1
    assert pending_instants(base) == []
    installation.run("verify", table)
