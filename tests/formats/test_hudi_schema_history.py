# SPDX-License-Identifier: Apache-2.0
"""Which columns of a table can't be told by their names over all its schemas."""

import json
from pathlib import Path
from typing import Any

from lake.formats.hudi.schema_history import DIRECTORY, misleading_names
from lake.formats.hudi.storage import Storage


def _found(base: Path, *schemas: list[Any]) -> list[str]:
    (base / DIRECTORY).mkdir(parents=True, exist_ok=True)
    versions = [{"version_id": number, "type": "record", "fields": fields} for number, fields in enumerate(schemas)]
    (base / DIRECTORY / "20260101000000001.schemacommit").write_text(json.dumps({"schemas": versions[:1]}))
    (base / DIRECTORY / "20260101000000002.schemacommit").write_text(json.dumps({"schemas": versions}))
    (base / DIRECTORY / "20260101000000003.schemacommit.inflight").touch()
    return list(misleading_names(Storage(str(base))))


def _field(number: int, name: str, kind: Any = "int") -> dict[str, Any]:
    return {"id": number, "name": name, "optional": True, "type": kind}


def test_a_table_without_a_history_has_no_misleading_names(tmp_path: Path) -> None:
    assert list(misleading_names(Storage(str(tmp_path)))) == []


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
