# SPDX-License-Identifier: Apache-2.0
"""The setting ``on_conflict`` in Hudi's terms: who wins if a writer and a plan change the same file groups.

By default Hudi refuses a write into file groups of a pending plan, and a write that began before the plan fails at its
commit. With ``writer_wins`` the write succeeds; the plan is refused at its commit, withdrawn and planned again.
"""

from collections.abc import Iterator

from lake.model import Concurrency, OnConflict, TableRef

CONFLICT_STRATEGY_KEY = "hoodie.write.lock.conflict.resolution.strategy"
UPDATES_STRATEGY_KEY = "hoodie.clustering.updates.strategy"
#: with this setting, a clustering fails while an inflight writer has not declared its file groups yet; without it, that
#: writer loses (since Hudi 1.2)
PENDING_INGESTION = "hoodie.clustering.fail.on.pending.ingestion.during.conflict.resolution"
_PREFER_WRITER = "PreferWriterConflictResolutionStrategy"
WRITER_WINS_OPTIONS = {
    CONFLICT_STRATEGY_KEY: f"org.apache.hudi.client.transaction.{_PREFER_WRITER}",
    UPDATES_STRATEGY_KEY: "org.apache.hudi.client.clustering.update.strategy.SparkAllowUpdateStrategy",
    PENDING_INGESTION: "true",
}
"""The settings of both sides if the writer wins; the last one matters on lakefold's side only."""


def effective_on_conflict(table: TableRef) -> OnConflict:
    """Return the effective choice: as configured, else as the write options imply, else Hudi's default."""
    if table.on_conflict is not None:
        return table.on_conflict
    named = table.write_options.get(CONFLICT_STRATEGY_KEY, "").endswith(_PREFER_WRITER)
    return OnConflict.WRITER_WINS if named else OnConflict.PLAN_WINS


def is_writer_preferred(table: TableRef) -> bool:
    """True if a writer of ``table`` wins against a plan."""
    return table.concurrency is Concurrency.OCC and effective_on_conflict(table) is OnConflict.WRITER_WINS


def conflict_options(table: TableRef) -> dict[str, str]:
    """Return lakefold's write options for the effective choice, to add to the table's own options."""
    return dict(WRITER_WINS_OPTIONS) if is_writer_preferred(table) else {}


def on_conflict_refusals(table: TableRef) -> Iterator[str]:
    """Yield the contradictions between ``on_conflict`` and the other settings of ``table``."""
    chosen = effective_on_conflict(table)
    if chosen is OnConflict.WRITER_WINS and table.concurrency is not Concurrency.OCC:
        if table.on_conflict is not None:
            yield (
                'on_conflict = "writer_wins" needs concurrency = "occ": with single_writer no writer runs meanwhile; '
                "set concurrency, or remove on_conflict"
            )
        return
    for key, value in WRITER_WINS_OPTIONS.items():
        given = table.write_options.get(key)
        if given is None:
            continue
        agrees = given.strip().lower() == value.lower()
        # Without the strategy the other two have no effect on lakefold's side.
        if (not agrees) if chosen is OnConflict.WRITER_WINS else (agrees and key == CONFLICT_STRATEGY_KEY):
            yield f'write_options {key} = {given} contradicts on_conflict = "{chosen}"; remove the key'
