# SPDX-License-Identifier: Apache-2.0
"""Which columns of a table can't be told by their names over all its schemas; whole and torn log files."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.records import is_intact_log
from lake.formats.hudi.timeline.schema_history import DIRECTORY, find_misleading_columns


def _found(base: Path, *schemas: list[Any]) -> list[str]:
    (base / DIRECTORY).mkdir(parents=True, exist_ok=True)
    versions = [{"version_id": number, "type": "record", "fields": fields} for number, fields in enumerate(schemas)]
    (base / DIRECTORY / "20260101000000001_20260101000000002.schemacommit").write_text(
        json.dumps({"schemas": versions[:1]})
    )
    (base / DIRECTORY / "20260101000000003_20260101000000004.schemacommit").write_text(
        json.dumps({"schemas": versions[::-1]})
    )
    (base / DIRECTORY / "20260101000000005.schemacommit.inflight").touch()
    return list(find_misleading_columns(TableStorage(str(base))))


def _field(number: int, name: str, kind: Any = "int") -> dict[str, Any]:
    return {"id": number, "name": name, "optional": True, "type": kind}


def test_a_table_without_a_history_has_no_misleading_names(tmp_path: Path) -> None:
    assert list(find_misleading_columns(TableStorage(str(tmp_path)))) == []


def test_columns_added_dropped_and_widened_keep_their_names(tmp_path: Path) -> None:
    first = [_field(0, "id"), _field(1, "x")]
    assert _found(tmp_path, first, [_field(0, "id", "long"), _field(1, "x"), _field(2, "y")], [_field(0, "id")]) == []


def test_a_column_with_two_names_and_a_name_of_two_columns_are_found_at_any_depth(tmp_path: Path) -> None:
    def stop(*fields: dict[str, Any]) -> list[Any]:
        return [_field(0, "id"), _field(1, "stop", {"type": "record", "fields": list(fields)})]

    assert _found(tmp_path, stop(_field(2, "lat")), stop(_field(2, "latitude"))) == [
        "column stop.lat was renamed to stop.latitude"
    ]
    assert _found(tmp_path, stop(_field(2, "lat")), stop(), stop(_field(3, "lat"))) == [
        "column stop.lat was dropped and added again"
    ]
    assert _found(tmp_path, [_field(0, "a"), _field(1, "b")], [_field(0, "b"), _field(1, "a")]) == [
        "column a was renamed to b",
        "column b was renamed to a",
        "column a was dropped and added again",
        "column b was dropped and added again",
    ]


def _block(content: bytes) -> bytes:
    length = 8 + len(content)
    return b"#HUDI#" + struct.pack(">q", length) + content + struct.pack(">q", length + 6)


@pytest.mark.parametrize(
    ("file", "whole"),
    [
        (_block(b"a"), True),
        (_block(b"a") + _block(b"#HUDI#" * 99), True),
        (b"", False),
        (_block(b"a")[:-1], False),
        (_block(b"a") + _block(b"b")[:9], False),
        (_block(b"a") + b"trailing", False),
        (b"x" + _block(b"a"), False),
        (_block(b"a")[:6] + struct.pack(">q", -1) + _block(b"a")[14:], False),
        (_block(b"abc").replace(b"abc", b"ab"), False),
    ],
)
def test_a_log_file_is_whole_where_every_byte_belongs_to_a_whole_block(file: bytes, whole: bool) -> None:
    assert is_intact_log(io.BytesIO(file), len(file)) is whole
