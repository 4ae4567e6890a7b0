# SPDX-License-Identifier: Apache-2.0
"""The file of a SQLite database that disappears, is replaced, or can't be written."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import sqlite_at
from sqlalchemy import text
from store_plans import TRIPS

from service.control.store import DatabaseReplaced, DatabaseUnreachable, SchemaMismatch, Store


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Store, Path]]:
    store = Store(sqlite_at(tmp_path))
    store.register_table(TRIPS, "compact")
    yield store, tmp_path / "lakefold.db"
    store.close()


def test_only_upgrade_creates_a_file(tmp_path: Path) -> None:
    path = tmp_path / "below" / "lakefold.db"
    store = Store(f"sqlite:///{path}")
    for use in (store.figures, store.check_writable, lambda: store.register_table(TRIPS, "off"), store.processes):
        with pytest.raises(DatabaseUnreachable, match=r"restore its backup .docs/operations.md#restore"):
            use()
    with pytest.raises(SchemaMismatch, match=r"For a new installation, run: lakefold db upgrade\. If it existed"):
        store.check()
    assert list(tmp_path.iterdir()) == []
    store.upgrade()
    store.check()
    store.close()


def test_each_database_of_a_process_opens_its_own_file(opened, tmp_path: Path) -> None:
    store, _ = opened
    (tmp_path / "other").mkdir()
    other = Store(sqlite_at(tmp_path / "other"))
    # A second connection at once: the first one is in use.
    with store._database.read(), store._database.read() as connection:
        assert [row.name for row in connection.execute(text("SELECT name FROM table_state"))] == [TRIPS.name]
    assert (len(other.table_states()), len(store.table_states())) == (0, 1)
    other.close()


def test_a_missing_database_file_is_noticed_at_the_next_call_and_used_after_its_return(opened) -> None:
    store, path = opened
    assert store.file_problem() is None
    away = path.rename(path.with_name("away.db"))
    for use in (store.figures, lambda: store.pause(None, "ada"), store.check_writable, store.table_states):
        with pytest.raises(DatabaseUnreachable, match=rf"the database file {path} is gone; lakefold changes nothing"):
            use()
    assert f"{path} is gone" in (store.file_problem() or "")
    assert not path.exists()
    away.rename(path)
    assert store.file_problem() is None
    assert store.service_pause() is None, "nothing was written to the file while it was gone"
    store.pause(None, "ada")


def test_a_write_whose_file_is_removed_before_its_commit_is_reported_as_failed(opened) -> None:
    store, path = opened
    with pytest.raises(DatabaseUnreachable, match="is gone"), store._database.write():
        path.rename(path.with_name("away.db"))


@pytest.mark.parametrize("connected", [True, False])
def test_another_file_under_the_path_is_never_used_by_this_process(opened, connected: bool) -> None:
    store, path = opened
    copy = path.with_name("copy.db")
    shutil.copyfile(path, copy)
    if not connected:
        store.close()
    os.replace(copy, path)
    for _ in range(2):
        with pytest.raises(DatabaseReplaced, match="was replaced by another file"):
            store.pause(None, "ada")
    assert "was replaced" in (store.file_problem() or "")
    again = Store(f"sqlite:///{path}")
    assert again.service_pause() is None
    again.close()


def test_another_file_is_noticed_although_no_connection_is_open(opened) -> None:
    """The file system may give the inode of a removed file to the next one."""
    store, path = opened
    store._database._engine.dispose()
    for _ in range(20):
        path.unlink()
        shutil.copyfile(Path(sqlite_at(path.parent).removeprefix("sqlite:///")), path.with_name("copy.db"))
        path.with_name("copy.db").replace(path)
        with pytest.raises(DatabaseReplaced):
            store.table_states()


def test_the_check_of_writing_stores_nothing_and_refuses_a_file_that_can_only_be_read(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's directories belong to one user
        home = Path(name)
        home.chmod(0o777)
        store = Store(sqlite_at(home))
        store.check_writable()
        store.check_writable()
        store.close()
        (home / "lakefold.db").chmod(0o444)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        try:
            store = Store(f"sqlite:///{home}/lakefold.db")
            store.check()
            with pytest.raises(DatabaseUnreachable, match=r"readonly database.*can be read but not written"):
                store.check_writable()
            store.close()
        finally:
            if is_root:
                os.seteuid(0)
