# SPDX-License-Identifier: Apache-2.0
"""Which partitions of a table changed between two looks, told without listing the partitions.

A directory's time changes when a file in it is made, renamed or removed. So one listing of what holds partitions tells
of all of them. The metastore is asked for names each time, and for a bounded number of partitions. What is remembered
is eight bytes a directory.
"""

import time
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from posixpath import basename

from lake.errors import Transient
from lake.files import Entry
from lake.filesystems import files_of
from lake.formats.hive import commits
from lake.formats.hive.catalog import open_metastore, places_of, table_of
from lake.formats.hive.commits import homes_of, token_of
from lake.formats.hive.slices import is_hidden
from lake.locations import file_at, path_in
from lake.metastore import Metastore, Table
from lake.model import TableRef

PARTITIONS_AT_ONCE = 1_000
"""How many partitions a look reads from the metastore, in turn."""

DIRECTORIES_AT_ONCE = 100_000
"""After how many directories a look ends; the next one goes on there."""

_SURE_AFTER_SECONDS = 60
"""How old a directory's time has to be to tell of all changes: two within one tick of a clock have one time."""


class HiveChanges:
    """See ``lake.optional.Changes``."""

    def __init__(self, ref: TableRef) -> None:
        self._ref, self._files = ref, files_of(ref.location)
        #: by root, and what holds partitions in it: a number for each directory there and its time
        self._marks: dict[str, dict[str, array[int]]] = {}
        self._partitions: dict[str, int] = {}
        self._last_name, self._last_root, self._looks = "", "", 0
        self._has_seen_all = False
        #: those that changed, until a look has told of them
        self._changed: set[str] = set()
        #: by root, the places that writers have made there again
        self._again: dict[str, list[tuple[str, str]]] = {}
        #: the mark of each place that was looked at by itself, and the directory above after which a look goes on
        self._of_places: dict[str, int] = {}
        self._last_above = ""

    def look(self) -> frozenset[str]:
        """See ``Changes``."""
        self._looks += 1
        with open_metastore(self._ref) as metastore:
            table = table_of(metastore, self._ref)
            if not table.partition_columns:
                return frozenset({""})
            self._changed.update(self._in_catalog(metastore, table))
        self._changed.update(self._in_directories(len(table.partition_columns)))
        changed, self._changed = frozenset(self._changed), set()
        return changed

    def look_at(self, places: Collection[str]) -> frozenset[str]:
        """See ``Changes``."""
        self._looks += 1
        by_directory: dict[str, dict[str, str]] = defaultdict(dict)
        for place in places:
            above, _, name = file_at(self._ref.location, place).rpartition("/")
            by_directory[above][name] = place
        changed = {place for place in places if place not in self._of_places}
        marks = {place: self._of_places.get(place, 0) for place in places}
        every, seen = sorted(by_directory), 0
        for above in every[bisect_right(every, self._last_above) :]:
            names, entries = by_directory[above], self._listed(above)
            now = {one.name: mark for one, mark in zip(entries, self._marked(entries), strict=True)}
            changed |= {place for name, place in names.items() if marks[place] != now.get(name, 0)}
            marks |= {place: now.get(name, 0) for name, place in names.items()}
            seen += len(entries)
            self._last_above = above
            if seen >= DIRECTORIES_AT_ONCE:
                break
        else:
            self._last_above = ""
        self._of_places = marks
        return frozenset(changed)

    def _listed(self, directory: str) -> Sequence[Entry]:
        try:
            return [one for one in self._files.list(directory) if one.is_directory]
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise Transient(f"{directory} can't be listed: {error.strerror}") from error

    @property
    def again(self) -> Mapping[str, Collection[str]]:
        """See ``Changes``."""
        found: dict[str, set[str]] = defaultdict(set)
        for partition, place in (one for some in self._again.values() for one in some):
            found[partition].add(place)
        return found

    def _in_catalog(self, metastore: Metastore, table: Table) -> Iterator[str]:
        names = sorted(metastore.partition_names(table.database, table.name))
        for name in self._partitions.keys() - set(names):
            del self._partitions[name]
            yield name
        start = bisect_right(names, self._last_name)
        some = names[start : start + PARTITIONS_AT_ONCE]
        self._last_name = some[-1] if start + PARTITIONS_AT_ONCE < len(names) else ""
        for place in places_of(metastore, table, some):
            mark = hash((place.location, token_of(place.parameters), place.made_at))
            if self._partitions.setdefault(place.name, mark) != mark:
                self._partitions[place.name] = mark
                yield place.name

    def _in_directories(self, depth: int) -> Iterator[str]:
        try:
            roots, seen = self._roots(), 0
            for root in roots[bisect_right(roots, self._last_root) :]:
                before, self._marks[root] = self._marks.get(root), {}
                is_ours = root == self._ref.location or commits.is_anything_ours(self._ref, basename(root))
                again = self._again[root] = []
                for holder, entries in self._holders(root, depth):
                    seen += len(entries)
                    if not is_ours:
                        again += self._written(root, holder, entries)
                    marks = self._marks[root][holder] = self._marked(entries)
                    if before is not None or self._has_seen_all:
                        yield from _changed(root, holder, entries, marks, (before or {}).get(holder))
                self._last_root = root
                if seen >= DIRECTORIES_AT_ONCE:
                    return
            self._last_root, self._has_seen_all = "", True
        except OSError as error:
            raise Transient(f"{self._ref.location} can't be listed: {error.strerror}") from error

    def _roots(self) -> Sequence[str]:
        """The table's own directory and its versions; marks of those that are gone are dropped."""
        roots = [self._ref.location]
        for home in homes_of(self._ref):
            with suppress(FileNotFoundError):
                roots += [one.path for one in self._files.list(home) if one.is_directory and not is_hidden(one.name)]
        for root in self._marks.keys() - set(roots):
            del self._marks[root]
        for root in self._again.keys() - set(roots):
            del self._again[root]
        return sorted(roots)

    def _written(self, root: str, holder: str, entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
        """The partitions and places in a version of which lakefold has nothing any more, where there are files."""
        if not commits.is_version(basename(root)):
            return
        for entry in entries:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                if not all(is_hidden(one.name) for one in self._files.list(entry.path)):
                    yield _below(root, f"{holder}/{entry.name}"), path_in(self._ref.location, entry.path)

    def _holders(self, root: str, depth: int) -> Iterator[tuple[str, Sequence[Entry]]]:
        """Each directory of a root that holds partitions, with these."""
        level = [root]
        for step in range(depth):
            below: list[str] = []
            for directory in level:
                try:
                    entries = [
                        one for one in self._files.list(directory) if one.is_directory and not is_hidden(one.name)
                    ]
                # What can't be listed, such as what else lies there, tells nothing; its partitions have their turn.
                except (FileNotFoundError, NotADirectoryError, PermissionError):
                    continue
                if step == depth - 1:
                    yield directory, entries
                else:
                    below += [one.path for one in entries]
            level = below

    def _marked(self, entries: Sequence[Entry]) -> "array[int]":
        young = (time.time() - _SURE_AFTER_SECONDS) * 1e9
        return array(
            "q",
            (hash((one.name, one.modified_ns, self._looks if one.modified_ns > young else 0)) for one in entries),
        )


def _changed(
    root: str, holder: str, entries: Sequence[Entry], marks: "array[int]", before: "array[int] | None"
) -> Iterator[str]:
    if marks == before:
        return
    known = frozenset(before or ())
    for entry, mark in zip(entries, marks, strict=True):
        if mark not in known:
            yield _below(root, f"{holder}/{entry.name}")


def _below(root: str, directory: str) -> str:
    """The partition in a directory: Spark keeps the case of columns there, which a metastore does not."""
    parts = (part.partition("=") for part in directory.removeprefix(root).lstrip("/").split("/"))
    return "/".join(f"{column.lower()}{equals}{value}" for column, equals, value in parts)
