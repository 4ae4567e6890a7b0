# SPDX-License-Identifier: Apache-2.0
"""What the archived timeline proves of a replaced file group that is read again, on tables made by hand."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from hudi_by_hand import T1, T2, T3, T4, T5, ByHand

from lake.capabilities import Resurrected
from lake.formats.hudi.audit.resurrected import find_resurrected
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.archive import ArchivedInstant
from lake.formats.hudi.timeline.timeline import Timeline


class Archived:
    """A table whose clustering of ``f-0`` into ``h-0`` is archived, with both file groups in storage."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = ByHand(base)
        self.replaced, self.heir = self.table.base_file(T1), self.table.base_file(T2, "p/h-0")
        self.table.complete(T4, "deltacommit", self.table.base_file(T4, "p/g-0"))
        self.instants = [self.commit(T1, "f-0", self.replaced), self.commit(T2, "h-0", self.heir, replaced=["f-0"])]
        monkeypatch.setattr(Timeline, "archived", self.archived)

    def commit(self, time: str, file_id: str, name: str, replaced: Collection[str] = ()) -> ArchivedInstant:
        size = (self.table.base / "p" / name).stat().st_size
        stat = {"fileId": file_id, "path": f"p/{name}", "fileSizeInBytes": size, "numWrites": 2}
        metadata: dict[str, Any] = {"partitionToWriteStats": {"p": [stat]}, "operationType": "BULK_INSERT"}
        if replaced:
            metadata |= {"partitionToReplaceFileIds": {"p": list(replaced)}, "operationType": "CLUSTER"}
        return self.instant(time, "replacecommit" if replaced else "commit", metadata)

    def instant(self, time: str, action: str, metadata: dict[str, Any] | None = None) -> ArchivedInstant:
        return ArchivedInstant(time=time, completed_at=time, action=action, plan=None, metadata=metadata)

    def archived(self, actions: Collection[str], **_: object) -> Iterator[ArchivedInstant]:
        return (entry for entry in self.instants if entry.action in actions)

    def found(self) -> Resurrected:
        storage = TableStorage(str(self.table.base))
        (group,) = find_resurrected(storage, Timeline(storage))
        return group


@pytest.fixture
def archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archived:
    return Archived(tmp_path / "t", monkeypatch)


def test_replaced_files_are_deleted_where_their_replacement_is_read(archived: Archived) -> None:
    group = archived.found()
    assert (group.file_id, group.instant, group.refusal) == ("f-0", T2, None)
    assert list(group.files) == [f"p/{archived.replaced}"]


def test_the_only_copy_of_the_rows_stays_if_its_replacement_is_lost(archived: Archived) -> None:
    (archived.table.base / "p" / archived.heir).unlink()
    assert f"readers do not see a file group that {T2} wrote in place of this one" in str(archived.found().refusal)


def test_the_only_copy_of_the_rows_stays_if_its_replacement_is_truncated(archived: Archived) -> None:
    with (archived.table.base / "p" / archived.heir).open("r+b") as file:
        file.truncate(100)
    refusal = str(archived.found().refusal)
    assert refusal.startswith(f"a file group that {T2} wrote in place of this one is damaged")
    assert archived.heir in refusal


def test_the_rows_are_followed_through_later_replacements(archived: Archived) -> None:
    last = archived.table.base_file(T3, "p/k-0")
    archived.instants.append(archived.commit(T3, "k-0", last, replaced=["h-0"]))
    (archived.table.base / "p" / archived.heir).unlink()
    assert archived.found().refusal is None
    (archived.table.base / "p" / last).unlink()
    assert "readers do not see" in str(archived.found().refusal)


def test_a_replacement_that_a_restore_may_have_undone_proves_nothing(archived: Archived) -> None:
    archived.instants.append(archived.instant(T3, "restore"))
    assert str(archived.found().refusal).startswith(f"restore {T3} came after {T2}")


def test_a_restore_that_is_on_the_timeline_still_counts_as_well(archived: Archived) -> None:
    (archived.table.base / f".hoodie/{T5}.restore").write_text("{}")
    assert str(archived.found().refusal).startswith(f"restore {T5} came after {T2}")


def test_a_file_group_that_its_own_replacement_rewrote_is_not_removed(archived: Archived) -> None:
    archived.instants[1] = archived.commit(T2, "f-0", archived.table.base_file(T2), replaced=["f-0"])
    assert "wrote into it" in str(archived.found().refusal)
