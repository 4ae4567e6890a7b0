# SPDX-License-Identifier: Apache-2.0
"""lakefold's database in a run: SQLite, or a PostgreSQL server of its own. Either can be lost."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import postgres
from databases import sqlite_at
from sqlalchemy import create_engine, text
from support import needs_server

_NAME = "chaos"


@contextmanager
def new_database(kind: str, home: Path) -> Iterator["Database"]:
    """An empty database, in ``home`` if ``kind`` is sqlite, else on a server of its own. Skips without a server."""
    if kind == "sqlite":
        yield Database(home, None)
        return
    if postgres.binaries() is None:
        needs_server(postgres.INSTALL)
    server = postgres.Server(durable=True)
    try:
        yield Database(home, server)
    finally:
        server.remove()


class Database:
    """``url`` is where it is; the same after ``lose``."""

    def __init__(self, home: Path, server: postgres.Server | None) -> None:
        self._home, self._server = home, server
        self.url = self._made()

    def lose(self) -> None:
        """Put an empty one in its place. Its clients have ended."""
        if self._server is None:
            for path in self._home.glob("*.db*"):
                path.unlink()
        else:
            postgres.drop_database(self._server.url, _NAME)
        self.url = self._made()

    @property
    def has_server(self) -> bool:
        """Whether it can be away."""
        return self._server is not None

    @contextmanager
    def away(self) -> Iterator[None]:
        """Its server has crashed meanwhile. What was committed is there again afterwards."""
        assert self._server is not None
        self._server.stop(immediate=True)
        try:
            yield
        finally:
            assert self._server.start()

    def locks(self) -> Mapping[str, str]:
        """The partitions that the sweep, the cleaner or a plan at its commit has locked, each with its owner."""
        engine = create_engine(self.url)
        others = (
            "SELECT partition_path, holder_kind, guest FROM live_partition WHERE plan_id IS NULL OR guest <> plan_id"
        )
        committing = (
            "SELECT partition_path FROM live_partition JOIN plan ON plan.id = live_partition.plan_id "
            "WHERE plan.grace_ms > 0"
        )
        with engine.connect() as connection:
            plans = connection.execute(text(committing)).scalars().all()
            rows = connection.execute(text(others)).all()
        engine.dispose()
        # The owner beside a plan is recorded without its kind.
        beside = {row.partition_path: "cleaner" if row.holder_kind == "plan" else row.holder_kind for row in rows}
        return dict.fromkeys(plans, "plan at its commit") | beside

    def _made(self) -> str:
        return sqlite_at(self._home) if self._server is None else postgres.new_database(self._server.url, _NAME)
