# SPDX-License-Identifier: Apache-2.0
"""Files that commits replaced: which of them the metastore makes the table's all the same."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from posixpath import dirname

from lake.formats.hive.catalog import HOME, Place
from lake.locations import file_at
from lake.model import TableRef, words_of
from lake.plan import SupersededVersion


def in_use(ref: TableRef, versions: Sequence[SupersededVersion], places: Sequence[Place]) -> Mapping[str, str]:
    """Why a file may not be deleted, by its path, for those that a partition may be read from."""
    names = {place.location: place.name for place in places}
    sorted_locations = sorted(names)
    reasons: dict[str, str | None] = {}
    found = {}
    for version in versions:
        directory = dirname(file_at(ref.location, version.path))
        if directory not in reasons:
            around = _at_under_or_over(directory, names, sorted_locations)
            used = next((one for one in around if not _passed_over(ref, directory, one)), None)
            reasons[directory] = (
                None if used is None else f"{version.path}: {words_of(names[used])} is read from {used}"
            )
        reason = reasons[directory]
        if reason is not None:
            found[version.path] = reason
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
    home = f"{ref.location}/{HOME}/"
    return ref.location in (directory, location) and directory.startswith(home) != location.startswith(home)


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
