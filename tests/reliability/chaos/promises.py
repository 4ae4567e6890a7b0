# SPDX-License-Identifier: Apache-2.0
"""The older states and changes of a Hudi table that readers may still query, by its timeline alone."""

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
_FILE = re.compile(r"\.?(?P<group>.+)_([^_]+_(?P<base>\d{17})\.parquet|(?P<log>\d{17})\.log\..+)")


class Commit(NamedTuple):
    """A completed commit of the active timeline: the time of its request, of its completion, and its step.

    ``completed`` is '' on a timeline of layout 1, which does not record it. ``label`` is '' if the commit is not a step
    of the writer.
    """

    instant: str
    completed: str
    label: str


def promised_from(base: Path) -> str | None:
    """Return the first instant whose state can be queried; None if a clean does not record what it retains.

    Each clean on the active timeline retains the files that this instant and later ones need. States of archived
    instants can't be queried.
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
    """Return the completed commits of the active timeline, by request. ``labels`` are the labels of the steps."""
    found = []
    for name, content in _completed(base):
        if name["action"] != "clean":
            match = re.search(rb"chaos-step-\d{6}-\w+\.", content)
            label = match.group().decode() if match else ""
            found.append(Commit(name["instant"], name["completed"] or "", label if label in labels else ""))
    return sorted(found)


def since(begin: Commit, commits: Sequence[Commit]) -> tuple[str, list[Commit]]:
    """Return the option with which an incremental read begins after ``begin``, and the commits that it must report.

    Hudi compares the completions of commits if the timeline records them, else their requests.
    """
    if begin.completed:
        return begin.completed, [one for one in commits if one.completed > begin.completed]
    return begin.instant, [one for one in commits if one.instant > begin.instant]


def groups_hidden_by_compactions(base: Path, begin: Commit, commits: Sequence[Commit]) -> Collection[str]:
    """Return the file groups whose rows an incremental read after ``begin`` may leave out (Hudi 1.2.0).

    On a timeline of layout 1, a merge-on-read table's incremental read takes for its timeline the commits that it
    reports and the pending compactions. To this timeline a base file is committed if its commit is on it, or is older
    than all that are. So if a compaction is pending that is older than ``begin``, the read ignores the logs of base
    files that were committed between the compaction's request and ``begin``, until the compaction has ended.
    """
    if begin.completed:
        return ()
    names = [path.name for path in timeline_of(base).iterdir()]
    pending = {name[:17] for name in names if ".compaction." in name} - {one.instant for one in commits}
    first = min(pending, default=begin.instant)
    if first >= begin.instant:
        return ()
    newest: dict[str, str] = {}
    completed, oldest = {one.instant for one in commits}, min(one.instant for one in commits)
    for path in base.glob("[!.]*/*"):
        found = _FILE.fullmatch(path.name)
        instant = (found["base"] or found["log"]) if found else ""
        if found and (instant in completed or instant < oldest) and instant not in pending:
            newest[found["group"]] = max(newest.get(found["group"], ""), instant)
    return {group for group, instant in newest.items() if first < instant <= begin.instant}


def _completed(base: Path) -> Iterator[tuple[re.Match[str], bytes]]:
    """Yield the completed actions with their records. Actions that are archived meanwhile are left out."""
    for path in timeline_of(base).iterdir():
        found = _COMPLETED.fullmatch(path.name)
        if found is not None:
            with suppress(FileNotFoundError):
                yield found, path.read_bytes()


def timeline_of(base: Path) -> Path:
    """Return the directory of the active timeline, for both layouts."""
    home = base / ".hoodie" / "timeline"
    return home if home.is_dir() else base / ".hoodie"


def _record(content: bytes) -> dict[str, Any]:
    if content[:1] == b"{":
        return dict(json.loads(content))
    return next(iter(fastavro.reader(io.BytesIO(content))))  # type: ignore[arg-type]
