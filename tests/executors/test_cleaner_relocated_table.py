# SPDX-License-Identifier: Apache-2.0
"""Deletion of replaced files of a table that has another location now, for formats with relative and full paths."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toys import versions
from toys.bench import bench_at
from toys.cases import VersionsCase

from executors.outcome import RunResult
from lake.plan import Commit
from lake.ports import Rewrite
from lake.storage.locations import resolve_path


class LeavesFiles(versions.VersionsFormat):
    """Versions that name replaced files, and what is staged, by absolute paths, since a new location leaves them."""

    def writer(self, *arguments: Any) -> versions.VersionsWriter:
        writer = super().writer(*arguments)
        location, commit = arguments[0].location, writer.commit

        def named(rewrite: Rewrite) -> Commit:
            made = commit(rewrite)
            return replace(
                made, superseded=tuple(replace(one, path=resolve_path(location, one.path)) for one in made.superseded)
            )

        writer.commit = named  # type: ignore[method-assign]
        return writer


@pytest.mark.parametrize(("leaves", "format_"), [(True, LeavesFiles()), (False, versions.VersionsFormat())])
def test_replaced_files_are_searched_for_where_the_format_places_them(tmp_path: Path, leaves: bool, format_: Any):
    with bench_at(tmp_path, case=VersionsCase(format=format_)) as bench:
        before = Path(bench.table.location)
        bench.request()
        assert bench.run().result is RunResult.COMPLETED
        old = [before / due.version.path for due in bench.store.awaiting_deletion(bench.table)]
        # The metadata alone is elsewhere, or the directory has another name.
        now = before.with_name("elsewhere")
        (shutil.copytree if leaves else shutil.move)(before, now, **({"ignore": _data} if leaves else {}))
        bench.table = replace(bench.table, location=str(now))
        bench.store.register_table(bench.table, "compact")
        sizes = sum(path.stat().st_size for path in (old if leaves else map(now.joinpath, _below(before, old))))
        report = bench.clean()
        assert (report.deleted_files, report.bytes_freed) == (len(old), sizes)
        assert not any(path.exists() for path in [*old, *map(now.joinpath, _below(before, old))])


def _data(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(".parquet")]


def _below(location: Path, paths: list[Path]) -> list[Path]:
    return [path.relative_to(location) for path in paths]
