# SPDX-License-Identifier: Apache-2.0
"""The engine ``arrow`` leaves out the rows that a task omits, and no engine gets a task that it does not understand."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys.engine import CopyRows
from verification_case import table

from executors.engines import group_rewrite
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from lake.engine_choice import choose_engines, split_by_engine
from lake.engines import NO_OMISSIONS, RewriteTask
from lake.errors import Conflict, Rejected, Transient
from lake.plan import RewriteOptions

OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30)
ENGINE = ArrowEngine(InProcessBackend(1))


@dataclass
class Omitted:
    """The positions of the rows that are left out, by input."""

    positions: Mapping[str, set[int]]
    error: Exception | None = None
    calls: list[Mapping[str, int]] = field(default_factory=list)

    def read_remaining(self, rows: Mapping[str, int]) -> Mapping[str, pa.BooleanArray]:
        self.calls.append(dict(rows))
        if self.error is not None:
            raise self.error
        return {
            path: pa.array([row not in gone for row in range(rows[path])], pa.bool_())
            for path, gone in self.positions.items()
        }


def task_of(inputs: Sequence[str], folder: Path, omitted: Omitted, outputs: int = 1) -> RewriteTask:
    folder.mkdir(parents=True, exist_ok=True)
    names = tuple(str(folder / f"{number}.parquet") for number in range(outputs))
    size = sum(Path(path).stat().st_size for path in inputs)
    return RewriteTask(group=0, inputs=tuple(inputs), outputs=names, bytes=size, omissions=omitted)


def rewrite(task: RewriteTask, options: RewriteOptions = OPTIONS) -> list[str]:
    """The files that the engine writes, which are all that is left in their directory."""
    assert ENGINE.unsupported_reason(task, options) is None
    written = list(ENGINE.rewrite([task], options, lambda _: None, threading.Event()))
    assert {file.path for file in written} <= set(task.outputs)
    folder = Path(task.outputs[0]).parent
    assert sorted(str(path) for path in folder.iterdir()) == sorted(file.path for file in written)
    for file in written:
        assert file.rows == pq.read_metadata(file.path).num_rows > 0
    return [file.path for file in written]


def rows_of(paths: Sequence[str], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *(pq.ParquetFile(path).read() for path in paths)])


def some_rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": pa.array([f"n{number % 5}" if number % 4 else None for number in numbers], pa.string()),
            "parts": pa.array(
                [None if number % 9 == 0 else [{"a": number}] * (number % 3) for number in numbers],
                pa.list_(pa.struct([("a", pa.int32())])),
            ),
        }
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_rows_left_are_those_that_are_not_omitted_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
):
    home = tmp_path_factory.mktemp("rows")
    batch = data.draw(st.sampled_from([2, 7, 64, 1 << 16]))
    # pyarrow's batches, however small: the engine asks for at least 1,024 rows.
    monkeypatch.setattr(group_rewrite, "_BATCH_ROWS", batch)
    monkeypatch.setattr(
        group_rewrite, "max", lambda *numbers: batch if numbers[0] == 1024 else max(*numbers), raising=False
    )
    paths, parts, gone = [], [], {}
    for number in range(data.draw(st.integers(1, 3))):
        count = data.draw(st.integers(0, 60))
        rows = some_rows(1000 * number, count)
        paths.append(str(home / f"in{number}.parquet"))
        pq.write_table(rows, paths[-1], row_group_size=data.draw(st.sampled_from([3, 16, 100])))
        kind = data.draw(st.sampled_from(["none", "some", "all", "range"]))
        if kind == "range":
            start = data.draw(st.integers(0, count))
            positions = set(range(start, data.draw(st.integers(start, count))))
        else:
            some = st.sets(st.integers(0, max(0, count - 1)), max_size=count)
            positions = set() if kind == "none" else set(range(count)) if kind == "all" else data.draw(some)
        if kind != "none" or data.draw(st.booleans()):
            gone[paths[-1]] = positions
        parts.append(rows.take(pa.array([row for row in range(count) if row not in positions], pa.int64())))
    omitted = Omitted(gone)
    outputs = data.draw(st.integers(1, 3))
    by = data.draw(st.sampled_from([(), ("id",), ("name", "id")]))
    layout = data.draw(st.sampled_from(["linear", "zorder", "hilbert"]))
    options = replace(OPTIONS, sort_columns=by, layout=layout)
    written = rewrite(task_of(paths, home / "new", omitted, outputs), options)
    wanted = pa.concat_tables(parts)
    found = rows_of(written, wanted.schema)
    if by:
        found, wanted = found.sort_by("id"), wanted.sort_by("id")
    assert found.to_pylist() == wanted.to_pylist()
    assert omitted.calls == [{path: pq.read_metadata(path).num_rows for path in paths}]


def test_no_file_is_written_if_all_rows_are_omitted(tmp_path: Path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(table(range(20)), path, row_group_size=6)
    assert rewrite(task_of([path], tmp_path / "new", Omitted({path: set(range(20))}), 2)) == []
    few = rewrite(task_of([path], tmp_path / "few", Omitted({path: set(range(19))}), 3))
    assert rows_of(few, pq.read_schema(path)).column("id").to_pylist() == [19]


def test_values_of_omitted_rows_are_in_no_dictionary_filter_or_bound(tmp_path: Path):
    path = str(tmp_path / "a.parquet")
    names = [f"name{number % 7}" if number % 50 else "the secret" for number in range(5000)]
    rows = pa.table({"id": range(5000), "name": names, "raw": [name.encode() for name in names]})
    pq.write_table(
        rows, path, row_group_size=1000, compression="none", bloom_filter_options={"name": {"ndv": 10, "fpp": 0.01}}
    )
    omitted = Omitted({path: {number for number in range(5000) if number % 50 == 0}})
    assert b"the secret" in Path(path).read_bytes()
    for turn, options in enumerate((OPTIONS, replace(OPTIONS, sort_columns=("id",)))):
        (new,) = rewrite(task_of([path], tmp_path / f"new{turn}", omitted), options)
        assert b"the secret" not in Path(new).read_bytes()
        found = pq.ParquetFile(new).read()
        assert found.column("name").to_pylist() == [name for name in names if name != "the secret"]
        assert pq.read_metadata(new).row_group(0).column(1).has_dictionary_page


def test_an_input_whose_omitted_rows_can_t_be_found_leaves_its_group_out(tmp_path: Path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(table(range(20)), path)
    gone = task_of([path], tmp_path / "new", Omitted({}, Conflict("d.parquet was deleted while the plan ran")))
    with pytest.raises(Conflict, match=r"d\.parquet was deleted") as caught:
        rewrite(gone)
    ((left_out,),) = caught.value.args[1:]
    assert (left_out.group, left_out.quarantine) == (0, ())
    with pytest.raises(Transient, match="try later"):
        rewrite(task_of([path], tmp_path / "new", Omitted({}, Transient("try later"))))
    short = Omitted({path: set()})
    short.read_remaining = lambda rows: {path: pa.array([True] * 19)}  # type: ignore[method-assign]
    with pytest.raises(Rejected, match="has 20 rows, and the format names 19"):
        rewrite(task_of([path], tmp_path / "new", short))
    assert list((tmp_path / "new").iterdir()) == []


def test_no_engine_that_does_not_know_of_omissions_gets_a_task_with_them(tmp_path: Path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(table(range(20)), path)
    backend = InProcessBackend(1)
    engines: list[Any] = [ParquetStitchEngine(backend), HybridEngine(backend), CopyRows(), ENGINE]
    omitting = task_of([path], tmp_path / "new", Omitted({path: {3}}))
    plain = replace(omitting, group=1, omissions=None)
    chosen = choose_engines([omitting, plain], engines, replace(OPTIONS, min_row_group_bytes=0), "t")
    assert chosen[0].engine is ENGINE
    assert chosen[0].reason == "; ".join(f"{one.name} can't: {NO_OMISSIONS}" for one in engines[:3])
    assert chosen[1].engine is engines[0]
    for name in ("stitch", "hybrid"):
        with pytest.raises(Rejected, match="leave out deleted rows"):
            choose_engines([omitting], engines, replace(OPTIONS, engine=name), "t")
        assert split_by_engine([omitting], engines, replace(OPTIONS, engine=name)) == (
            {},
            {0: f"{name} can't: {NO_OMISSIONS}"},
        )
    found, refused = split_by_engine([omitting], engines, replace(OPTIONS, engine="arrow"))
    assert (found[0].engine, found[0].reason, refused) == (ENGINE, "as set", {})
    assert split_by_engine([omitting], engines, replace(OPTIONS, engine="other")) == (
        {},
        {0: "engine = other is not available"},
    )
