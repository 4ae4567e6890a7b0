# SPDX-License-Identifier: Apache-2.0
"""What is watched on the table's timeline all the time: which commits name which plan."""

import re
import threading
from contextlib import suppress
from pathlib import Path

_PLAN = re.compile(rb"lakefold\.plan.{1,8}?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})", re.DOTALL)


class Commits:
    """Plans and the completed instants that named them, archived ones too. Use as a context manager."""

    def __init__(self, base: Path) -> None:
        self._base, self._stop = base, threading.Event()
        self._seen: set[str] = set()
        self.instants: dict[str, set[str]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Commits":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def twice(self) -> list[str]:
        """Plans that more than one commit named."""
        return [f"{plan}: {sorted(instants)}" for plan, instants in self.instants.items() if len(instants) > 1]

    def _run(self) -> None:
        while not self._stop.wait(0.3):
            with suppress(FileNotFoundError):
                self._look()

    def _look(self) -> None:
        home = self._base / ".hoodie"
        for directory in (home / "timeline", home):
            for path in [*directory.glob("*.replacecommit"), *directory.glob("*.commit")]:
                if path.name not in self._seen:
                    found = _PLAN.search(path.read_bytes())
                    self._seen.add(path.name)
                    if found:
                        instant = re.split(r"[._]", path.name)[0]
                        self.instants.setdefault(found[1].decode(), set()).add(instant)
