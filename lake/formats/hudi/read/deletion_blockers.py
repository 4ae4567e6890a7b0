# SPDX-License-Identifier: Apache-2.0
"""Why superseded files have to wait although their retention has passed: older states that Hudi would answer wrongly.

What a table's newest clean says is all that Hudi knows of the states that can still be read: from its earliest retained
instant on it answers ``as.of.instant`` and takes savepoints. A clean of lakefold's says so truly. The next clean of the
table's own cleaner says what its own policy keeps, and knows nothing of what lakefold has deleted. So a file waits as
long as that cleaner may still delete something older: whichever of the two keeps more wins.

The archiver goes by the same clean. It may archive a replacement from before the earliest retained instant, and a file
that it replaced and that still exists is live again then. Writers since Hudi 1.0 can be told an older bound for the
archiver alone (``can_bound_archival``). Where they can't, files are deleted in the order of the commits that replaced them.
"""

from collections.abc import Mapping, Sequence

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.read.superseded import find_replaced_files, find_superseding_instants
from lake.formats.hudi.timeline.timeline import (
    CLEAN_KEY,
    COMMIT_ACTIONS,
    PLANNED_KINDS,
    Instant,
    Timeline,
    extra_metadata,
)
from lake.plan import SupersededVersion

AUTOMATIC_CLEAN_KEY = "hoodie.clean.automatic"
"""Whether the table's writers clean; 'false' in a table's ``write_options`` says that none of them does."""
_CLEAN_POLICY_KEYS = ("hoodie.clean.policy", "hoodie.cleaner.policy")
_KEEP_BY_VERSIONS = "KEEP_LATEST_FILE_VERSIONS"
REPLACING_KINDS = frozenset({"clustering", "replacecommit"})
"""Pending actions that will replace file groups."""


def can_bound_archival(timeline: Timeline, options: Mapping[str, str]) -> bool:
    """Whether a clean can state a bound for the archiver that is older than the one for readers.

    Archivers before Hudi 1.0 do not know it, and none looks at it that cleans by file versions.
    """
    return timeline.layout != 1 and _clean_policy(timeline, options) != _KEEP_BY_VERSIONS


def _clean_policy(timeline: Timeline, options: Mapping[str, str]) -> str:
    declared = next((options[key] for key in _CLEAN_POLICY_KEYS if key in options), None)
    if declared is not None:
        return declared.upper()
    clean = newest_foreign_clean(timeline)
    return str((timeline.plan(clean) or {}).get("policy") or "") if clean is not None else ""


def newest_foreign_clean(timeline: Timeline) -> Instant | None:
    """The newest completed clean that is not lakefold's."""
    for instant in reversed(timeline.completed):
        if instant.action == "clean" and CLEAN_KEY not in extra_metadata(timeline.metadata(instant)):
            return instant
    return None


def find_ordering_blockers(
    storage: TableStorage, timeline: Timeline, options: Mapping[str, str], versions: Sequence[SupersededVersion]
) -> dict[str, str]:
    """Of ``versions``, which are deletable otherwise, the paths of those that have to wait, and what for.

    ``options`` are the table's ``write_options``.
    """
    if not versions:
        return {}
    instants, without = {version.instant for version in versions}, {version.path for version in versions}
    waits: dict[str, str] = {}
    if not can_bound_archival(timeline, options):
        replaced = find_replaced_files(storage, timeline, without)
        pending = min((i.time for i in timeline.pending if i.kind in REPLACING_KINDS), default="")
        for time in instants:
            if replaced.oldest_commit and replaced.oldest_commit < time:
                waits[time] = (
                    f"{_describe_retained_file(timeline, replaced.oldest_path)}, which commit {replaced.oldest_commit} replaced, has to go first"
                )
            elif pending and pending < time:
                waits[time] = f"pending {pending} is older than {time} and may replace files that have to go first"
    answerable = _readable_since(timeline, options)
    asked = sorted(time for time in instants if time > answerable and time not in waits)
    if asked:
        files = {
            path: time for path, time in find_superseding_instants(storage, timeline).items() if path not in without
        }
        path = min(files, key=lambda path: (files[path], path), default="")
        writes = COMMIT_ACTIONS | PLANNED_KINDS
        pending = min((i.time for i in timeline.pending if i.kind in writes), default="")
        for time in asked:
            if path and files[path] < time:
                waits[time] = (
                    f"{_describe_retained_file(timeline, path)} was superseded before it, by {files[path]}; when the table's own cleaner "
                    f"deletes that, Hudi would answer queries of the time before {time} again, and wrongly. If no "
                    f'writer cleans this table, set {AUTOMATIC_CLEAN_KEY} = "false" in its write_options'
                )
            elif pending and pending < time:
                waits[time] = (
                    f"pending {pending} began before {time}, and the table's own cleaner may state an earlier time "
                    "after it"
                )
    return {version.path: waits[version.instant] for version in versions if version.instant in waits}


def _readable_since(timeline: Timeline, options: Mapping[str, str]) -> str:
    """From where on the table's own cleaner keeps states readable, as far as it has said; '' where it has not.

    What no cleaner keeps begins after every instant.
    """
    never = "9" * 17
    if options.get(AUTOMATIC_CLEAN_KEY, "").lower() == "false":
        return never
    clean = newest_foreign_clean(timeline)
    if clean is None:
        return never if _clean_policy(timeline, options) == _KEEP_BY_VERSIONS else ""
    earliest = str((timeline.metadata(clean) or {}).get("earliestCommitToRetain") or "").strip()
    return earliest or never


def _describe_retained_file(timeline: Timeline, path: str) -> str:
    saved = next((time for time, paths in timeline.savepoints().items() if path in paths), None)
    return f"{path}, kept by savepoint {saved}," if saved is not None else path
