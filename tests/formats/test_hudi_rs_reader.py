# SPDX-License-Identifier: Apache-2.0
"""The reader of slices that verifies rewrites of Hudi tables, on single files."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake.errors import Transient
from lake.formats.hudi.files.additions import KEY_COLUMN
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.read.hudi_rs import HudiRsReader


class FailingFile(io.BytesIO):
    """A file whose storage answered when it was opened, and answers no longer."""

    def read(self, size: int | None = -1) -> bytes:
        raise OSError("curlCode: 28, Timeout was reached")


@pytest.fixture
def storage(tmp_path: Path) -> TableStorage:
    return TableStorage(str(tmp_path))


@pytest.mark.parametrize(("keys", "repeated"), [(["a", "b", "a"], True), (["a", "b", "c"], False)])
def test_repeated_keys_of_a_base_file_are_found(storage: TableStorage, keys: list[str], repeated: bool) -> None:
    pq.write_table(pa.table({KEY_COLUMN: keys}), storage.path("base.parquet"))
    assert HudiRsReader(storage).has_repeated_keys("base.parquet") is repeated


def test_a_base_file_without_a_column_of_keys_has_no_repeated_ones(storage: TableStorage) -> None:
    pq.write_table(pa.table({"id": [1, 1]}), storage.path("base.parquet"))
    assert not HudiRsReader(storage).has_repeated_keys("base.parquet")


def test_a_passing_error_while_repeated_keys_are_looked_for_is_no_answer(
    storage: TableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer "no" would let another reader merge the slice, which finds a difference and halts the table."""
    monkeypatch.setattr(storage, "open", lambda relative: pa.PythonFile(FailingFile(bytes(100)), mode="r"))
    with pytest.raises(Transient, match="its record keys can't be read"):
        HudiRsReader(storage).has_repeated_keys("base.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1 torn"])
def test_a_damaged_base_file_is_no_answer_about_repeated_keys(storage: TableStorage, content: bytes) -> None:
    Path(storage.path("base.parquet")).write_bytes(content)
    with pytest.raises(Transient, match="its record keys can't be read"):
        HudiRsReader(storage).has_repeated_keys("base.parquet")
