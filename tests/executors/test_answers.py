# SPDX-License-Identifier: Apache-2.0
"""DuckDB and pyarrow answer the same over files that the engine ``arrow`` wrote as over all rows, none skipped."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from answers.cases import Batch, batch
from answers.readers import files, in_duckdb, in_duckdb_unskipped, in_pyarrow, in_pyarrow_unskipped
from answers.writers import written_by_duckdb, written_by_pyarrow
from support import SOAK

from executors.engines import group_rewrite
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from lake.engines import RewriteTask
from lake.plan import RewriteOptions

OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30)
SEEDS = range(1_000 if SOAK else 40)


def different(folder: Path, seed: int) -> Iterator[str]:
    """Conditions of the batch of ``seed`` that a reader answers otherwise over new files, in words."""
    drawn = batch(seed, tables=1, predicates=30)
    random = Random(seed)
    (tables,) = drawn.tables
    folder.mkdir()
    by_duckdb = random.random() < 0.4
    paths = written_by_duckdb(folder, tables) if by_duckdb else written_by_pyarrow(random, folder, tables)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_rewrite, "_ROW_GROUP_BYTES", random.choice([1, 8 << 20]))
        new = rewritten(folder, paths, random.choice([1, 2]))
    yield from compared(drawn, new, f"seed {seed}, written by {'DuckDB' if by_duckdb else 'pyarrow'}")


def rewritten(folder: Path, paths: Sequence[str], count: int) -> list[str]:
    names = tuple(str(folder / f"new-{number}.parquet") for number in range(count))
    task = RewriteTask(group=0, inputs=tuple(paths), outputs=names, bytes=1)
    engine = ArrowEngine(InProcessBackend(1))
    assert engine.unsupported_reason(task, OPTIONS) is None
    return [file.path for file in engine.rewrite([task], OPTIONS, lambda _: None, threading.Event())]


def compared(drawn: Batch, new: Sequence[str], told: str) -> Iterator[str]:
    asked, of_pyarrow = drawn.predicates, [one for one in drawn.predicates if one.is_for_pyarrow]
    found = {
        "DuckDB": (asked, in_duckdb_unskipped(drawn.rows, asked), in_duckdb(new, asked)),
        "pyarrow": (
            of_pyarrow,
            in_pyarrow_unskipped(drawn.rows, of_pyarrow),
            in_pyarrow(files(new, drawn.rows.schema), of_pyarrow),
        ),
    }
    for reader, answers in found.items():
        for one, before, after in zip(*answers, strict=True):
            if before != after:
                yield f"{told}, {reader}: {one.duckdb}: {sorted(after)} instead of {sorted(before)}"


@pytest.mark.slow
def test_duckdb_and_pyarrow_give_the_same_answers_with_and_without_skipping_in_new_files(tmp_path: Path):
    assert [line for seed in SEEDS for line in different(tmp_path / str(seed), seed)] == []
