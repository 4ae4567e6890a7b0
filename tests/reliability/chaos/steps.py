# SPDX-License-Identifier: Apache-2.0
"""The writer's steps, drawn from a seed and from what its table contains."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from chaos.ledger import EVOLUTIONS, Row, State, Step, schema

PARTITIONS = tuple(f"2026-01-{day:02d}" for day in range(1, 4))
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
#: operations with their weights; bulk inserts leave small files, which is what lakefold is for
_MIX = {
    "bulk_insert": 4,
    "insert": 3,
    "upsert": 6,
    "delete": 3,
    "insert_overwrite": 1,
    "delete_partition": 1,
}
#: with more rows than this, more is taken away than is added
_MANY = 900


def draw(seed: int, number: int, state: State, size: int, *, only: Sequence[str] = ()) -> Step:
    """Step ``number`` of the writer with this seed on a table in ``state``; ``only`` restricts the operations."""
    random = Random(f"{seed}/{number}")
    weights = {name: weight for name, weight in _MIX.items() if not only or name in only}
    if len(state.rows) > _MANY:
        weights |= {name: 4 for name in ("insert_overwrite", "delete_partition") if name in weights}
    if state.savepoints:
        # The writer's next clean deletes the partition's directory, and in it what the savepoint keeps (Hudi 1.2.0).
        weights.pop("delete_partition", None)
    if len(state.rows) < size:
        weights = {name: weight for name, weight in weights.items() if "insert" in name} or {"bulk_insert": 1}
    operation = random.choices(list(weights), list(weights.values()))[0]
    evolutions = state.evolutions
    if evolutions < len(EVOLUTIONS) and operation not in ("delete", "delete_partition") and random.random() < 0.15:
        evolutions += 1
    day = random.choice(PARTITIONS)
    if operation == "delete_partition":
        return Step(number=number, operation=operation, evolutions=evolutions, partitions=(day,))
    if operation == "insert_overwrite":
        rows = [_row(random, number, n, evolutions, day) for n in range(random.randint(size // 2, size))]
        return Step(number=number, operation=operation, evolutions=evolutions, partitions=(day,), rows=tuple(rows))
    if operation in ("insert", "bulk_insert"):
        rows = [_row(random, number, n, evolutions) for n in range(random.randint(size // 2, size))]
        return Step(number=number, operation=operation, evolutions=evolutions, rows=tuple(rows))
    # Half of the changes are to one day, as most writers' are.
    pool = [key for key, row in sorted(state.rows.items()) if row["dt"] == day or random.random() < 0.5]
    chosen = random.sample(pool, min(len(pool), random.randint(size // 2, size)))
    old = [_row(random, number, 0, evolutions, state.rows[key]["dt"]) | {"id": key} for key in chosen]
    if operation == "delete":
        return Step(number=number, operation=operation, evolutions=evolutions, rows=tuple(old))
    new = [_row(random, number, n, evolutions) for n in range(random.randint(0, size // 4))]
    if not old and not new:
        new = [_row(random, number, 0, evolutions)]
    return Step(number=number, operation=operation, evolutions=evolutions, rows=(*old, *new))


def _row(random: Random, number: int, n: int, evolutions: int, day: str | None = None) -> Row:
    """A row with the key of the ``n``-th new one of step ``number``; every value may differ from version to version."""
    row: Row = {
        "id": number * 1000 + n,
        "ts": number,
        "dt": day or random.choice(PARTITIONS),
        "fare": Decimal(random.randrange(10**6)) / 1000,
        "at": _EPOCH + timedelta(microseconds=random.randrange(10**12)),
        "tip": _maybe(random, random.randrange(100)),
        # eighths have the same value in four bytes and in eight
        "weight": _maybe(random, random.randrange(4000) / 8),
        "stop": _maybe(random, {"lat": random.uniform(-60, 60), "name": _maybe(random, f"stop {n} ★")}),
        "note": _maybe(random, random.choice(["airport", "", "ünïcödé", "two\nlines"])),
        "score": _maybe(random, random.random()),
        "paid": _maybe(random, Decimal(random.randrange(10**4)) / 100),
    }
    columns = schema(evolutions)
    if str(columns.field("tip").type) == "int64" and row["tip"] is not None:
        row["tip"] += random.choice([0, 1 << 40])
    if str(columns.field("weight").type) == "double" and row["weight"] is not None:
        row["weight"] += random.choice([0, 0.1])
    return {name: row[name] for name in columns.names}


def _maybe(random: Random, value: Any) -> Any:
    return None if random.random() < 0.15 else value
