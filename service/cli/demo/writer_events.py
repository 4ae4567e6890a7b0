# SPDX-License-Identifier: Apache-2.0
"""The events of the demo's writer, read from the JSON lines that it prints."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class WriterEvents:
    """The reader of the writer's output file, with totals of the events read so far."""

    path: Path
    commits: int = 0
    conflicts: int = 0
    is_holding: bool = False
    last_commit: dict[str, Any] = field(default_factory=dict)
    _offset: int = 0

    def read_new(self) -> list[dict[str, Any]]:
        """Return the events added since the last call, or none before the writer has started."""
        events: list[dict[str, Any]] = []
        if not self.path.exists():
            return events
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # an incomplete line; the next call reads it whole
                self._offset += len(line)
                if line.startswith(b"{"):  # the JVM may print lines of its own
                    events.append(json.loads(line))
        for event in events:
            self._count(event)
        return events

    def _count(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "commit":
            self.commits += 1
            self.last_commit = event
        elif kind == "conflict":
            self.conflicts += 1
        elif kind in ("holding", "resumed"):
            self.is_holding = kind == "holding"
