# SPDX-License-Identifier: Apache-2.0
"""Table version 6 without a JVM: which slice a log file belongs to, and when it was written.

The tables are made by hand, file by file; real ones of that version are in the conformance suite.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

from hudi_by_hand import T1, T2, T3, T4, T5, ByHand
from hudi_templates import ref

from lake.formats.hudi import FORMAT


def test_logs_written_while_a_compaction_is_pending_belong_to_its_slice_and_are_listed(tmp_path: Path) -> None:
    table = ByHand(tmp_path / "t")
    base = table.base_file(T1)
    table.complete(T1, "deltacommit", base)
    older = table.log_file(T1, 1)
    table.complete(T2, "deltacommit", older)
    table.request_compaction(T3, base, [older])
    younger = table.log_file(T3, 1)
    table.complete(T4, "deltacommit", younger)
    (only,) = table.slices()
    assert (only["path"], only["log_files"]) == (f"p/{base}", [older, younger])
    assert only["log_bytes"] == 12
    assert only["busy_reason"] == f"pending compaction {T3}"
    verified = FORMAT.verify(ref(table.base), (), rows=False)
    assert (verified.missing, verified.unowned, verified.files) == ((), (), 3)

    compacted = table.base_file(T3)
    table.complete(T3, "commit", compacted)
    (only,) = table.slices()
    assert (only["path"], only["log_files"], only["busy_reason"]) == (f"p/{compacted}", [younger], None)
    verified = FORMAT.verify(ref(table.base), (), rows=False)
    assert (verified.missing, verified.resurrected, verified.unowned, verified.files) == ((), (), (), 2)


def test_a_log_counts_from_when_it_was_written_since_its_name_has_the_base_files_instant(tmp_path: Path) -> None:
    table = ByHand(tmp_path / "t")
    base = table.base_file(T1)
    table.complete(T1, "deltacommit", base)
    log = table.log_file(T1, 1)
    table.complete(T5, "deltacommit", log)
    written = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    os.utime(table.base / "p" / log, (written.timestamp(),) * 2)
    os.utime(table.base / f".hoodie/{T1}.deltacommit", (written.timestamp() - 60,) * 2)
    (only,) = table.slices()
    assert only["modified_at"] == written
    (table.base / "p" / log).unlink()
    (table.base / f".hoodie/{T5}.deltacommit").unlink()
    (only,) = table.slices()
    assert only["modified_at"] == datetime.fromtimestamp(written.timestamp() - 60, UTC), "the completed file's own time"


def test_files_of_a_rollback_in_a_slice_have_an_owner_and_a_stray_base_file_has_none(tmp_path: Path) -> None:
    table = ByHand(tmp_path / "t")
    base = table.base_file(T1)
    table.complete(T1, "deltacommit", base)
    for version in (1, 2):  # the failed write's log file, and the one whose command block takes it back
        table.log_file(T1, version)
    stray = table.base_file(T4)
    verified = FORMAT.verify(ref(table.base), (), rows=False)
    assert verified.unowned == (f"p/{stray}",)
    assert verified.missing == ()


def test_files_of_a_pending_write_are_not_listed_although_it_is_older_than_all_commits(tmp_path: Path) -> None:
    """Of two first writes of a table, the one that began first still runs; or it was killed."""
    table = ByHand(tmp_path / "t")
    (table.base / f".hoodie/{T1}.commit.requested").touch()
    (table.base / f".hoodie/{T1}.inflight").touch()
    of_first = table.base_file(T1, "p/f-1")
    base = table.base_file(T2)
    table.complete(T2, "commit", base)
    (only,) = table.slices()
    assert only["path"] == f"p/{base}"
    table.complete(T1, "commit", of_first)
    assert {entry["path"] for entry in table.slices()} == {f"p/{base}", f"p/{of_first}"}
