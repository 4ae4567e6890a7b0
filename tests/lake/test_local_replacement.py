# SPDX-License-Identifier: Apache-2.0
"""Files of local file systems, where their steps must not undo what other programs do meanwhile."""

from pathlib import Path
from unittest import mock

import pytest

from lake.storage import local
from lake.storage.local import LocalFileIO


@pytest.mark.parametrize("has_exchange", [True, False])
def test_a_file_replaces_another_which_has_its_name_after_an_exchange(tmp_path: Path, has_exchange: bool):
    new, old = tmp_path / "new", tmp_path / "old"
    new.write_bytes(b"new")
    old.write_bytes(b"old")
    with mock.patch.object(local, "_exchange_names", local._exchange_names if has_exchange else lambda *names: False):
        LocalFileIO().replace(str(new), str(old))
    left = {"new": b"old"} if has_exchange else {}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old": b"new", **left}


@pytest.mark.parametrize("has_exchange", [True, False])
def test_a_file_that_another_program_removed_is_not_replaced(tmp_path: Path, has_exchange: bool):
    new, old = tmp_path / "new", tmp_path / "old"
    new.write_bytes(b"new")
    with (
        mock.patch.object(local, "_exchange_names", local._exchange_names if has_exchange else lambda *names: False),
        pytest.raises(FileNotFoundError),
    ):
        LocalFileIO().replace(str(new), str(old))
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_the_file_systems_of_these_tests_exchange_names(tmp_path: Path):
    for name in ("one", "other"):
        (tmp_path / name).write_text(name)
    assert local._exchange_names(str(tmp_path / "one"), str(tmp_path / "other"))
    assert ((tmp_path / "one").read_text(), (tmp_path / "other").read_text()) == ("other", "one")
