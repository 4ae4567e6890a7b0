# SPDX-License-Identifier: Apache-2.0
"""What becomes of a commit in whose middle the table's lock may have been lost.

Between the last look and the end of Hudi's call the lock can still be lost: where the Java process stands still for
longer than the lock's store waits, or where another process takes the lock away. So the lock is confirmed once more
after the call. Where that fails, the lock is taken again, so that no writer is in the middle of its commit, and the
timeline is asked whether the commit took away what a writer had committed, or whether one of the two is missing in the
metadata table. Then the commit is taken back, and the writer's stays.

A process that dies in between leaves this to the next one that asks for the commit: see ``read.lost_writes``.
"""

import logging
from collections.abc import Sequence

from lake.errors import CommitLost, CommitUnknown, Conflict, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.jvm.outcomes import translate
from lake.formats.hudi.plans.freshness import pending_groups
from lake.formats.hudi.plans.last_look import last_look
from lake.formats.hudi.plans.publication import inflight_ingest
from lake.formats.hudi.read.lost_writes import lost_text, lost_writes
from lake.formats.hudi.timeline import metadata_table
from lake.formats.hudi.timeline.history import record_of
from lake.formats.hudi.timeline.timeline import Instant, Timeline
from lake.ports import Prepared

log = logging.getLogger(__name__)
_DOING = "verifying a commit"


def verify_commit(client: HudiClient, prepared: Prepared, action: str) -> None:
    """See to it that the completed commit of ``prepared`` took no row away, although the lock may have been lost.

    Raises Conflict where the commit was taken back, CommitLost where it would have to be and could not, CommitUnknown
    where the lock is not to be had.
    """
    try:
        with client.locked(_DOING):
            timeline = client.timeline()
            commit = timeline.find(prepared.instant, action=action)
            if commit is None or commit.pending:
                raise CommitUnknown(f"{client.table.name}: {prepared.instant} was taken back by another process")
            _verify(client, timeline, commit, prepared)
    except Transient as error:
        raise CommitUnknown(f"{error}; until then nobody can tell whether the commit is sound") from error


def _verify(client: HudiClient, timeline: Timeline, commit: Instant, prepared: Prepared) -> None:
    lost = lost_writes(timeline, commit)
    faults = list(metadata_table.faults(client.storage, timeline))
    name = client.table.name
    if not lost and not faults:
        log.warning("%s: the lock may have been lost during commit %s, but no writer committed", name, commit.time)
        return
    text = lost_text(commit.time, lost) if lost else faults[0]
    obstacle = _obstacle(client, timeline, commit, prepared)
    if obstacle is not None:
        raise CommitLost(f"{name}: {text}; it was not taken back, since {obstacle}")
    last_look(client, _DOING, withdraws=True)
    try:
        client.worker.rollback(commit.time)
    except Exception as error:
        raise CommitLost(f"{name}: {text}; taking it back failed: {translate(error, client.table, _DOING)}") from error
    after = client.timeline()
    left = list(metadata_table.faults(client.storage, after))
    busy = inflight_ingest(client, after, prepared.plan.partitions)
    # The request is there again: it is withdrawn like that of every plan that ended.
    if any(instant.time == commit.time for instant in after.completed) or left or busy:
        raise CommitLost(f"{name}: {text}; it was taken back, but {_first(left, busy)}")
    raise Conflict(
        f"{name}: the table's lock was lost during commit {commit.time}, and {_writers(lost)} meanwhile; the commit "
        "was taken back and the next scan plans again"
    )


def _first(faults: Sequence[str], busy: str | None) -> str:
    if faults:
        return faults[0]
    return "it is still completed" if busy is None else f"a writer ({busy}) began meanwhile and may have read it"


def _writers(lost: Sequence[Instant]) -> str:
    if not lost:
        return "the metadata table was written to by another process"
    return f"{', '.join(f'{instant.kind} {instant.time}' for instant in lost)} was committed"


def _obstacle(client: HudiClient, timeline: Timeline, commit: Instant, prepared: Prepared) -> str | None:
    """Why ``commit`` can't be taken back without losing what came after it; None where it can."""
    made = {wrote.group for wrote in record_of(timeline.written(commit)).wrote or ()}
    for instant in timeline.commits:
        if instant.time == commit.time:
            continue
        record = record_of(timeline.written(instant))
        if made & ({wrote.group for wrote in record.wrote or ()} | set(record.replaced)):
            return f"{instant.kind} {instant.time} has written to its files"
    if made & pending_groups(timeline).keys():
        return "a pending plan names its files"
    busy = inflight_ingest(client, timeline, prepared.plan.partitions)
    return None if busy is None else f"a writer is inflight ({busy})"
