# SPDX-License-Identifier: Apache-2.0
"""The superseded files in storage: files of older states of the table that the newest state does not contain.

Hudi answers ``as.of.instant`` and ``savepoint`` from the files in storage. A file belongs to all states from the commit
that wrote it until just before the commit that superseded it. So a clean that deletes the file has to declare that
states before the superseding commit are no longer readable.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from lake.formats.hudi.files.names import DataFileName, FileGroupId, parse_file_name, relative_path
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.read.slices import read_archived_completions
from lake.formats.hudi.timeline.timeline import Timeline


def find_superseding_instants(
    storage: TableStorage, timeline: Timeline, partitions: Collection[str] | None = None
) -> Mapping[str, str]:
    """Return for each superseded file in storage the instant of the commit that superseded it.

    Live files and files of uncommitted writes are left out. A file is superseded by the next base file of its file
    group, or by the commit of the active timeline that replaced the group, whichever is older. ``partitions`` None
    means all partitions.
    """
    groups: dict[FileGroupId, list[DataFileName]] = defaultdict(list)
    for path in storage.data_file_sizes(partitions):
        file = parse_file_name(path)
        if file is not None:
            groups[file.group_id].append(file)
    completed = {instant.time: instant.completed_at or instant.time for instant in timeline.commits}
    oldest = min(completed, default="")
    old_logs = {file.instant for files in groups.values() for file in files if file.is_log and file.instant < oldest}
    if timeline.layout != 1 and old_logs:
        completed = {**read_archived_completions(timeline, old_logs - completed.keys()), **completed}
    replaced, is_committed = _replacing_instants(timeline), timeline.commit_test()
    found = {}
    for group, files in groups.items():
        committed = [file for file in files if is_committed(file.instant)]
        bases = sorted({file.instant for file in committed if not file.is_log})
        for file in committed:
            # A log of layout 2 belongs to the newest base file that began before the log's commit completed.
            by_completion = file.is_log and timeline.layout != 1
            since = completed.get(file.instant, file.instant) if by_completion else file.instant
            later = bases[bisect_right(bases, since) :][:1]
            later += [replaced[group]] if group in replaced else []
            if later:
                found[relative_path(file.partition, file.name)] = min(later)
    return found


def find_change_data(
    storage: TableStorage, properties: Mapping[str, str], base_paths: Collection[str]
) -> Mapping[str, Mapping[str, int]]:
    """Return the files with change data of the slices with the given base files: by base file, path and size.

    Empty for tables without ``hoodie.table.cdc.enabled``. A file with change data has the instant of its base file.
    """
    if properties.get("hoodie.table.cdc.enabled", "").lower() != "true":
        return {}
    bases = {(file.group_id, file.instant): path for path in base_paths if (file := parse_file_name(path)) is not None}
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for path, size in storage.data_file_sizes({group[0] for group, _ in bases}).items():
        file = parse_file_name(path)
        if file is not None and file.is_cdc and (base := bases.get((file.group_id, file.instant))) is not None:
            found[base][path] = size
    return found


def _replacing_instants(timeline: Timeline) -> Mapping[FileGroupId, str]:
    return {group: time for time, groups in reversed(_read_replacements(timeline)) for group in groups}


def _read_replacements(timeline: Timeline) -> list[tuple[str, list[FileGroupId]]]:
    """Return the active timeline's completed replacecommits, by time, each with the file groups that it replaced."""
    commits = [instant for instant in timeline.completed if instant.action == "replacecommit"]
    found = []
    for instant, record in zip(commits, timeline.storage.map_parallel(timeline.metadata, commits), strict=True):
        replaced = ((record or {}).get("partitionToReplaceFileIds") or {}).items()
        found.append((instant.time, [(partition, file_id) for partition, ids in replaced for file_id in ids]))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedFiles:
    """The files of replaced file groups in storage.

    ``paths`` has these files by the commit that replaced them. ``newest_deleted_commit`` is the newest commit that
    replaced a file group of which no file exists, '' if there is no such commit.
    """

    paths: Mapping[str, Sequence[str]] = field(default_factory=dict)
    newest_deleted_commit: str = ""

    @property
    def oldest_commit(self) -> str:
        """The oldest commit whose replaced files still exist; '' if there is none."""
        return min(self.paths, default="")


def find_replaced_files(storage: TableStorage, timeline: Timeline, excluded: Collection[str] = ()) -> ReplacedFiles:
    """Find the files of replaced file groups in storage, except the paths in ``excluded``."""
    paths: dict[FileGroupId, set[str]] = defaultdict(set)
    listed = set()
    left: dict[str, list[str]] = defaultdict(list)
    deleted = ""
    for time, groups in _read_replacements(timeline):
        for group in groups:
            if group[0] not in listed:
                listed.add(group[0])
                for name in storage.list_file_names(group[0]):
                    file = parse_file_name(relative_path(group[0], name))
                    if file is not None and (found := relative_path(group[0], name)) not in excluded:
                        paths[file.group_id].add(found)
            if group not in paths:
                deleted = time
            else:
                left[time] += sorted(paths[group])
    return ReplacedFiles(paths=dict(left), newest_deleted_commit=deleted)
