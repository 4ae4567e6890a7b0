# SPDX-License-Identifier: Apache-2.0
"""The one call of the metastore that commits. It compares nothing: so there is a look right before it, and one after.

What its owner does to a partition between the look before and the call, a moment later, is undone, as it is by any
client of a metastore that changes the same partition. What a writer adds to its files then is late.
"""

from collections.abc import Callable, Mapping

from lake.errors import CommitUnknown, Integrity, Transient
from lake.failpoints import failpoint
from lake.formats.hive import commits
from lake.formats.hive.catalog import alter, places_of, table_of, undone
from lake.formats.hive.evidence import Seen, identities
from lake.formats.hive.slices import list_places
from lake.metastore import Metastore, Partition, Table
from lake.model import TableRef, words_of
from lake.plan import Commit


def make(
    metastore: Metastore,
    table: Table,
    ref: TableRef,
    seen: Mapping[str, Seen],
    changed: Mapping[str, Partition | Table],
    commit: Commit,
    ready: Callable[[], None],
    *,
    brings_more: bool,
) -> Transient | None:
    """Make the call, where the partitions are still as they were ``seen``; why it was not made or refused, or None.

    ``ready`` raises where it may not be made any more. Files that were only added speak against the call as long as
    the commit ``brings_more``. Where the metastore answers an error it is asked what it did.
    """
    failpoint("in_commit")
    try:
        other = _other(metastore, ref, seen, brings_more=brings_more)
        ready()
    except BaseException:
        commits.take_back(ref, commit.instant)
        raise
    if other is not None:
        commits.take_back(ref, commit.instant)
        return Transient(f"{words_of(other)} was changed right before its commit")
    try:
        alter(metastore, table, changed.values())
    except CommitUnknown:
        raise
    except Transient as error:
        try:
            made = commits.landed(metastore, table, ref, [commit.instant])
        except Transient as unknown:
            raise CommitUnknown(f"{error}; and then: {unknown}") from error
        if not made:
            commits.take_back(ref, commit.instant)
            return error
    return None


def check(metastore: Metastore, table: Table, ref: TableRef, changed: Mapping[str, Partition | Table]) -> None:
    """Raise Integrity where somebody else has written the same at the same time: nothing kept the two apart."""
    now = table_of(metastore, ref)
    difference = undone(metastore, now, changed)
    if difference is None and now.storage.columns != table.storage.columns:
        difference = "the columns of the table changed"
    if difference is not None:
        raise Integrity(
            f"somebody changed {ref.name} in the metastore while a commit did, and one of the two may have "
            f"undone the other: {difference}; compare with what was intended, then lakefold resume"
        )


def _other(metastore: Metastore, ref: TableRef, seen: Mapping[str, Seen], *, brings_more: bool) -> str | None:
    """A partition that is not in the metastore, or in storage, as it was seen; None where there is none."""
    now = {place.name: place for place in places_of(metastore, table_of(metastore, ref), seen)}
    moved = next((name for name, one in seen.items() if now.get(name) != one.place), None)
    if moved is not None:
        return moved
    # After the metastore, since files come more often than anything else changes.
    listings = list_places(ref.name, [one.place for one in seen.values()])
    files = {listing.place.name: identities(listing) for listing in listings}
    for name, one in seen.items():
        finished = {path: file for path, file in files[name].items() if path not in one.unfinished}
        if _differ(one.files, finished, brings_more):
            return name
    return None


def _differ(before: Mapping[str, object], now: Mapping[str, object], brings_more: bool) -> bool:
    return before != now if brings_more else not before.items() <= now.items()
