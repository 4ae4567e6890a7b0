# SPDX-License-Identifier: Apache-2.0
"""Empty databases for tests. Copies of one file: migrating each takes longer than most tests."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from service.control.store import Store


def sqlite_at(home: Path) -> str:
    """The URL of ``home/lakefold.db``, a new SQLite file with our schema where there is none."""
    path = home / "lakefold.db"
    if not path.exists():
        shutil.copyfile(_template(), path)
    return f"sqlite:///{path}"


def store_at(home: Path) -> Store:
    """A store on ``home/lakefold.db``."""
    return Store(sqlite_at(home))


@cache
def _template() -> Path:
    home = Path(tempfile.mkdtemp(prefix="lakefold-empty-"))
    atexit.register(shutil.rmtree, home)
    store = Store(f"sqlite:///{home}/lakefold.db")
    store.upgrade()
    store.close()
    return home / "lakefold.db"
