# SPDX-License-Identifier: Apache-2.0
"""Bringing the database's schema up to this lakefold's, and noticing when it is not.

The migrations come from the installed ``migrations`` package: no file outside the wheel is needed.
"""

import logging
import time
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import text

from service.store.engine import SETTING, UPGRADE, Database
from service.store.errors import DatabaseUnreachable, SchemaBehind

logger = logging.getLogger(__name__)

#: any number, the same in every lakefold: two processes that upgrade one PostgreSQL at once take turns
_ADVISORY_LOCK = 0x6C616B65


def alembic_config() -> Config:
    """Alembic's configuration, made without any ini file."""
    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    return config


def head() -> str:
    """The revision this lakefold works with."""
    revision = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert revision is not None, "the migrations package holds at least one revision"
    return revision


def check(database: Database) -> None:
    """Raise SchemaBehind unless the schema is exactly this lakefold's, DatabaseUnreachable without a database."""
    wanted = head()
    if database.sqlite_file is not None and not database.sqlite_file.exists():
        raise SchemaBehind(f"there is no database {database.shown} yet (setting {SETTING}); {UPGRADE}")
    with database.read() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    if found == wanted:
        return
    if found is None:
        raise SchemaBehind(f"database {database.shown} has no lakefold schema; {UPGRADE}")
    if not _known(found):
        raise SchemaBehind(
            f"the schema of database {database.shown} is at revision {found}, which this lakefold ({wanted}) does not"
            f" know; install the lakefold that made it, then {UPGRADE}"
        )
    raise SchemaBehind(f"the schema of database {database.shown} is at revision {found}, behind {wanted}; {UPGRADE}")


def upgrade(database: Database) -> None:
    """Create or upgrade the schema. Safe to run twice, and from several processes at once."""
    if database.sqlite_file is not None:
        _prepare_file(database)
    config = alembic_config()
    with database.write() as connection:
        if database.dialect == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        found = MigrationContext.configure(connection).get_current_revision()
        if found is not None and not _known(found):
            raise SchemaBehind(
                f"the schema of database {database.shown} is at revision {found}, which this lakefold does not know;"
                f" install the lakefold that made it, then {UPGRADE}"
            )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _known(revision: str) -> bool:
    try:
        ScriptDirectory.from_config(alembic_config()).get_revision(revision)
    except CommandError:
        return False
    return True


def _prepare_file(database: Database) -> None:
    """The directory, and write-ahead logging, which the file remembers: readers then never wait for a writer."""
    assert database.sqlite_file is not None
    try:
        database.sqlite_file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseUnreachable(
            f"database {database.shown} can't be used: {error.strerror} ({database.sqlite_file.parent});"
            f" the setting is {SETTING}"
        ) from error
    # Changing the journal's mode needs the file alone and does not wait for it as other statements do.
    for attempt in range(50):
        try:
            with database.outside_transaction() as connection:
                connection.execute(text("PRAGMA journal_mode = WAL"))
                return
        except DatabaseUnreachable as error:
            if "locked" not in str(error) or attempt == 49:
                raise
            time.sleep(0.1)
