# SPDX-License-Identifier: Apache-2.0
"""What is read of the archive to find a Flink job's upserts, also if it is damaged; tables made by hand, no JVM."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_by_hand import T1, T2, T3, ByHand
from test_hudi_history import LAYOUT_TWO

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.read.flink_state import find_flink_index
from lake.formats.hudi.timeline import archive
from lake.formats.hudi.timeline.timeline import Timeline


class Archived(ByHand):
    """A table that Flink writes; its archive is of layout 2."""

    def __init__(self, base: Path) -> None:
        super().__init__(base, LAYOUT_TWO)
        (base / ".hoodie/.aux/ckp_meta").mkdir(parents=True)
        self._history = base / ".hoodie/timeline/history"
        self._history.mkdir(parents=True)

    def archive(self, time: str, operation: str) -> Path:
        record = json.dumps({"operationType": operation}).encode()
        head = {"instantTime": time, "completionTime": time, "action": "deltacommit"}
        file = self._history / f"{time}_{time}_0.parquet"
        pq.write_table(pa.Table.from_pylist([{**head, "plan": None, "metadata": record}]), file)
        return file

    def why(self) -> str | None:
        return find_flink_index(Timeline(TableStorage(str(self.base))), {})


@pytest.fixture
def table(tmp_path: Path) -> Archived:
    return Archived(tmp_path / "t")


def test_only_records_that_contain_the_word_are_decoded_each_once(
    table: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    decode = archive.decode_record
    monkeypatch.setattr(
        archive, "decode_record", lambda content: (decoded.append(content) if content else None, decode(content))[1]
    )
    table.archive(T1, "INSERT")
    table.archive(T2, "UPSERT_PREPPED")
    assert (table.why(), len(decoded)) == (None, 1)
    table.archive(T3, "UPSERT")
    assert "shows that Flink upserts the table" in str(table.why())
    assert len(decoded) == 2


def test_a_damaged_archive_does_not_fail_the_scan_and_its_upserts_are_not_excluded(table: Archived) -> None:
    table.archive(T1, "INSERT")
    damaged = table.archive(T2, "INSERT")
    whole = damaged.read_bytes()
    damaged.write_bytes(b"PAR1")
    why = str(table.why())
    assert f"{damaged.name} can't be read (" in why
    assert "put it back from a backup: it may hold upserts, and by default (index.type = FLINK_STATE) the job" in why
    damaged.write_bytes(whole)
    assert table.why() is None
