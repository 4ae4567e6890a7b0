# SPDX-License-Identifier: Apache-2.0
"""Files that commits replaced: which of them the metastore makes the table's all the same."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from lake.formats.hive.catalog import Place
from lake.locations import file_at
from lake.model import TableRef
from lake.plan import SupersededVersion


def in_use(ref: TableRef, versions: Sequence[SupersededVersion], places: Sequence[Place]) -> Mapping[str, str]:
    """Why a file may not be deleted, by its path, for those that a partition may be read from."""
    names = {place.location: place.name for place in places}
    sorted_locations = sorted(names)
    reasons: dict[PurePath, str | None] = {}
    found = {}
    for version in versions:
        directory = PurePath(file_at(ref.location, version.path)).parent
        if directory not in reasons:
            used = next(_at_under_or_over(str(directory), names, sorted_locations), None)
            reasons[directory] = (
                None if used is None else f"{version.path}: partition {names[used]} is read from {used}"
            )
        reason = reasons[directory]
        if reason is not None:
            found[version.path] = reason
    return found


def live_again(ref: TableRef, versions: Sequence[SupersededVersion], places: Sequence[Place]) -> Mapping[int, str]:
    """Those, by index, whose partition is at their place again, each with that as the reason."""
    locations = {place.name: place.location for place in places}
    return {
        index: f"partition {version.partition} is at {locations[version.partition]} again"
        for index, version in enumerate(versions)
        if str(PurePath(file_at(ref.location, version.path)).parent) == locations.get(version.partition)
    }


def _at_under_or_over(directory: str, names: Mapping[str, str], locations: Sequence[str]) -> Iterator[str]:
    yield from (str(one) for one in (PurePath(directory), *PurePath(directory).parents) if str(one) in names)
    start = bisect_left(locations, f"{directory}/")
    if start < len(locations) and locations[start].startswith(f"{directory}/"):
        yield locations[start]
