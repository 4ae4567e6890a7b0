# SPDX-License-Identifier: Apache-2.0
"""News of the demo's writer, read from the JSON lines it prints."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class WriterEvents:
    """Follows the writer's output file; ``update`` returns the events that are new."""

    path: Path
    commits: int = 0
    conflicts: int = 0
    is_holding: bool = False
    last_commit: dict[str, Any] = field(default_factory=dict)
    _offset: int = 0

    def read_new(self) -> list[dict[str, Any]]:
        """Read what was added since the last call; nothing before the writer has started."""
        events: list[dict[str, Any]] = []
        if not self.path.exists():
            return events
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # half a line; it is read whole the next time
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
