# SPDX-License-Identifier: Apache-2.0
"""Files of this machine, in directories that others change meanwhile."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lake.storage.local import LocalFileIO


def test_a_file_that_is_removed_while_its_directory_is_listed_leaves_the_others_in_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    scan = os.scandir

    @contextmanager
    def read(directory: str) -> Iterator[list[Any]]:
        """The names, all of them before the first file is looked at."""
        with scan(directory) as entries:
            names = list(entries)
        (tmp_path / "b").unlink()
        yield names

    monkeypatch.setattr(os, "scandir", read)
    assert sorted(entry.name for entry in LocalFileIO().list(str(tmp_path))) == ["a", "c"]


def test_a_link_that_leads_nowhere_is_no_file(tmp_path: Path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "link").symlink_to("nowhere")
    assert [entry.name for entry in LocalFileIO().list(str(tmp_path))] == ["a"]


def test_a_directory_that_is_gone_is_not_an_empty_one(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        LocalFileIO().list(str(tmp_path / "gone"))
