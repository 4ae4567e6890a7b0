# SPDX-License-Identifier: Apache-2.0
"""Which older states a Hudi table still promises: read from its timeline alone, as any reader could."""

import io
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import fastavro

_COMPLETED = re.compile(r"(?P<instant>\d{17})(_\d{17})?\.(?P<action>commit|deltacommit|replacecommit|clean)")


def promised_from(base: Path) -> str | None:
    """The first instant whose state can be asked for by what the table says; None where a clean says nothing.

    No clean on the active timeline deleted what an instant from there on needs, each by its own word; and what is
    archived is over.
    """
    commits, retained = [], []
    for path in _timeline(base).iterdir():
        found = _COMPLETED.fullmatch(path.name)
        if found is None:
            continue
        if found["action"] != "clean":
            commits.append(found["instant"])
        else:
            earliest = _record(path.read_bytes()).get("earliestCommitToRetain")
            if not earliest:
                return None
            retained.append(str(earliest))
    return max([min(commits), *retained], default=None) if commits else None


def steps_on_timeline(base: Path, labels: Collection[str]) -> dict[str, str]:
    """Instant → the label of the writer's step that it is, of those completed on the active timeline."""
    found: dict[str, str] = {}
    for path in _timeline(base).iterdir():
        name = _COMPLETED.fullmatch(path.name)
        if name is not None and name["action"] != "clean":
            label = re.search(rb"chaos-step-\d{6}-\w+\.", path.read_bytes())
            if label is not None and label.group().decode() in labels:
                found[name["instant"]] = label.group().decode()
    return found


def _timeline(base: Path) -> Path:
    home = base / ".hoodie" / "timeline"
    return home if home.is_dir() else base / ".hoodie"


def _record(content: bytes) -> dict[str, Any]:
    if content[:1] == b"{":
        return dict(json.loads(content))
    return next(iter(fastavro.reader(io.BytesIO(content))))  # type: ignore[arg-type]
