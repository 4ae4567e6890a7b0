# SPDX-License-Identifier: Apache-2.0
"""Which older states and changes a Hudi table still promises: told by its timeline alone, as any reader could."""

import io
import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import fastavro

_COMPLETED = re.compile(
    r"(?P<instant>\d{17})(_(?P<completed>\d{17}))?\.(?P<action>commit|deltacommit|replacecommit|clean)"
)


class Commit(NamedTuple):
    """A completed commit of the active timeline: when it was requested, when it completed, which step it is.

    ``completed`` is '' on a timeline of layout 1, which does not say, ``label`` where it is no step of the writer.
    """

    instant: str
    completed: str
    label: str


def promised_from(base: Path) -> str | None:
    """The first instant whose state can be asked for by what the table says; None where a clean says nothing.

    No clean on the active timeline deleted what an instant from there on needs, each by its own word; and what is
    archived is over.
    """
    commits, retained = [], []
    for found, content in _completed(base):
        if found["action"] != "clean":
            commits.append(found["instant"])
        else:
            earliest = _record(content).get("earliestCommitToRetain")
            if not earliest:
                return None
            retained.append(str(earliest))
    return max([min(commits), *retained], default=None) if commits else None


def commits_of(base: Path, labels: Collection[str]) -> list[Commit]:
    """The completed commits of the active timeline, the oldest request first; ``labels`` are those of the steps."""
    found = []
    for name, content in _completed(base):
        if name["action"] != "clean":
            match = re.search(rb"chaos-step-\d{6}-\w+\.", content)
            label = match.group().decode() if match else ""
            found.append(Commit(name["instant"], name["completed"] or "", label if label in labels else ""))
    return sorted(found)


def since(begin: Commit, commits: Sequence[Commit]) -> tuple[str, list[Commit]]:
    """What an incremental read is told so that it begins after ``begin``, and the commits that it must tell of.

    Hudi goes by the completions of commits where the timeline has them, else by their requests.
    """
    if begin.completed:
        return begin.completed, [one for one in commits if one.completed > begin.completed]
    return begin.instant, [one for one in commits if one.instant > begin.instant]


def _completed(base: Path) -> Iterator[tuple[re.Match[str], bytes]]:
    """The completed actions with their records; what is archived meanwhile is left out."""
    for path in timeline_of(base).iterdir():
        found = _COMPLETED.fullmatch(path.name)
        if found is not None:
            with suppress(FileNotFoundError):
                yield found, path.read_bytes()


def timeline_of(base: Path) -> Path:
    """The directory of the active timeline, of either layout."""
    home = base / ".hoodie" / "timeline"
    return home if home.is_dir() else base / ".hoodie"


def _record(content: bytes) -> dict[str, Any]:
    if content[:1] == b"{":
        return dict(json.loads(content))
    return next(iter(fastavro.reader(io.BytesIO(content))))  # type: ignore[arg-type]
