# SPDX-License-Identifier: Apache-2.0
"""A partition that plans have moved, as the store records it."""

from dataclasses import replace

from store_plans import TRIPS, add, claimed, commit_of, figures_of

from lake.plan import LocatedFile, Plan, Relocation
from lake.relocation.model import RelocatedPartition
from service.control.store import Store

NEW = LocatedFile(path="v1/dt=1/new.parquet", bytes=9, modified_ms=9_000)


LATE = LocatedFile(path="dt=1/late.parquet", bytes=3, modified_ms=5_000)


def completed(store: Store) -> Plan:
    """A plan whose commit has moved its one partition."""
    plan = add(store, "dt=1")
    move = Relocation(
        partition="dt=1", token="v1", previous_location="dt=1", location="v1/dt=1", files=(NEW,), partition_created_at=7
    )
    commit = replace(commit_of(plan, "v1"), relocations=(move,))
    store.complete(claimed(store), commit, figures_of(plan), {})
    return plan


def known(store: Store) -> RelocatedPartition:
    (found,) = store.relocated_partitions(TRIPS)
    return found


def moved_on(store: Store, number: int, left: str, at: int = 7) -> None:
    """A later plan moves the partition from ``left`` to its own version."""
    plan, token = add(store, "dt=1"), f"v{number}"
    new = LocatedFile(path=f".lakefold/{token}/dt=1/new.parquet", bytes=9, modified_ms=at)
    move = Relocation(
        partition="dt=1",
        token=token,
        previous_location=left,
        location=f".lakefold/{token}/dt=1",
        files=(new,),
        partition_created_at=7,
    )
    store.complete(claimed(store), replace(commit_of(plan, token), relocations=(move,)), figures_of(plan), {})
