# SPDX-License-Identifier: Apache-2.0
"""Files that commits replaced: which of them the metastore makes the table's all the same."""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from posixpath import dirname

from lake.formats.hive.catalog import HOMES, Place
from lake.locations import file_at
from lake.model import TableRef, words_of
from lake.plan import SupersededVersion


def directories_of(ref: TableRef, versions: Sequence[SupersededVersion]) -> Collection[str]:
    """The directories that these files are in."""
    return {dirname(file_at(ref.location, version.path)) for version in versions}


def in_use(ref: TableRef, versions: Sequence[SupersededVersion], places: Sequence[Place]) -> dict[str, str]:
    """Why a file may not be deleted, by its path, for those that a partition may be read from."""
    reasons, found = read_from(ref, directories_of(ref, versions), places), {}
    for version in versions:
        reason = reasons.get(dirname(file_at(ref.location, version.path)))
        if reason is not None:
            found[version.path] = f"{version.path}: {reason}"
    return found


def read_from(ref: TableRef, directories: Collection[str], places: Sequence[Place]) -> dict[str, str]:
    """Those of ``directories`` that a partition of the table may be read from, each with which one, in words."""
    names = {place.location: place.name for place in places}
    sorted_locations = sorted(names)
    found = {}
    for directory in directories:
        around = _at_under_or_over(directory, names, sorted_locations)
        used = next((one for one in around if not _passed_over(ref, directory, one)), None)
        if used is not None:
            found[directory] = f"{words_of(names[used])} is read from {used}"
    return found


def live_again(ref: TableRef, versions: Sequence[SupersededVersion], places: Sequence[Place]) -> Mapping[int, str]:
    """Those, by index, whose partition is at their place again, each with that as the reason."""
    locations = {place.name: place.location for place in places}
    return {
        index: f"{words_of(version.partition)} is at {locations[version.partition]} again"
        for index, version in enumerate(versions)
        if dirname(file_at(ref.location, version.path)) == locations.get(version.partition)
    }


def _passed_over(ref: TableRef, directory: str, location: str) -> bool:
    """Whether readers of one of two directories pass over the other, since it is among the versions and they are not.

    Only a table without partitions is read from its own directory, and only then is anything above the versions.
    """
    homes = tuple(f"{ref.location}/{home}/" for home in HOMES)
    return ref.location in (directory, location) and directory.startswith(homes) != location.startswith(homes)


def _at_under_or_over(directory: str, names: Mapping[str, str], locations: Sequence[str]) -> Iterator[str]:
    over = directory
    while over.strip("/"):
        if over in names:
            yield over
        over = dirname(over)
    for index in range(bisect_left(locations, f"{directory}/"), len(locations)):
        if not locations[index].startswith(f"{directory}/"):
            return
        yield locations[index]
