# SPDX-License-Identifier: Apache-2.0
"""Upgrades of the database's schema, and the check of its revision.

The migrations are in the installed package ``migrations``, so no file outside the wheel is needed. ``upgrade`` loads
Alembic; ``check``, which runs at the start of every command, does not.
"""

import time
from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from lake.plan import TRANSITIONS, PlanState
from service.control.store.database import UPGRADE_HINT, URL_SETTING, Database
from service.control.store.errors import DatabaseUnreachable, SchemaMismatch, StoreError
from service.control.store.sqlite_file import RESTORE_HINT

if TYPE_CHECKING:
    from alembic.config import Config

#: the revision of this release, the last file of ``migrations/versions``; a later revision has a larger number
HEAD_REVISION = "0044"
#: the key of the lock that serializes upgrades of one PostgreSQL: an arbitrary number, the same in every release
_ADVISORY_LOCK = 0x6C616B65


def alembic_config() -> "Config":
    """Return Alembic's configuration, which needs no ini file."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    return config


def check(database: Database) -> None:
    """Raise SchemaMismatch if the schema has another revision, DatabaseUnreachable if the database is down."""
    _refuse_missing_file(database)
    with database.read() as connection:
        found = _revision(database, connection)
    if found is None:
        raise SchemaMismatch(f"database {database.display_url} has no lakefold schema; {UPGRADE_HINT}")
    if found != HEAD_REVISION:
        raise SchemaMismatch(
            f"the schema of database {database.display_url} is at revision {found}, behind {HEAD_REVISION}; "
            f"{UPGRADE_HINT}"
        )


def check_writable(database: Database) -> None:
    """Raise DatabaseUnreachable if the database can't be written. Stores nothing."""
    try:
        with database.write() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = version_num"))
            connection.rollback()
    except StoreError as error:
        if isinstance(error, DatabaseUnreachable) and "readonly" not in str(error):
            raise
        raise DatabaseUnreachable(f"{error}; the database can be read but not written") from error


def upgrade(database: Database, *, creates_file: bool = True) -> None:
    """Create or upgrade the schema. Can be called repeatedly, and by several processes at once.

    Raises DatabaseUnreachable. Raises SchemaMismatch if the schema belongs to a newer release, or if the SQLite file is
    missing and ``creates_file`` is False.
    """
    from alembic import command

    if not creates_file:
        _refuse_missing_file(database)
    if database.sqlite_file is not None:
        _prepare_sqlite_file(database)
    config = alembic_config()
    with database.write_without_timeout() as connection:
        if database.dialect == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        if _revision(database, connection) != HEAD_REVISION:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def _refuse_missing_file(database: Database) -> None:
    if database.sqlite_file is not None and not database.sqlite_file.path.exists():
        raise SchemaMismatch(
            f"database {database.display_url} does not exist (setting {URL_SETTING}). For a new installation, "
            f"{UPGRADE_HINT}. If it existed before, {RESTORE_HINT}"
        )


def _revision(database: Database, connection: Connection) -> str | None:
    """Return the schema's revision; None if there is no schema. Raises SchemaMismatch if it is of a newer release."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    if found is not None and found > HEAD_REVISION:
        raise SchemaMismatch(
            f"the schema of database {database.display_url} is at revision {found}, later than this "
            f"release's ({HEAD_REVISION}); install the release that created it, then {UPGRADE_HINT}"
        )
    return found


def _prepare_sqlite_file(database: Database) -> None:
    """Create the file and its directory, and switch the file to write-ahead logging.

    With write-ahead logging, readers never wait for a writer. The setting is stored in the file.
    """
    assert database.sqlite_file is not None
    try:
        database.sqlite_file.create()
    except OSError as error:
        raise DatabaseUnreachable(
            f"database {database.display_url} can't be used: {error.strerror} ({database.sqlite_file.path});"
            f" the setting is {URL_SETTING}"
        ) from error
    # Changing the journal mode needs exclusive access. Unlike other statements, it does not wait for it.
    for attempt in range(50):
        try:
            with database.outside_transaction() as connection:
                connection.execute(text("PRAGMA journal_mode = WAL"))
                return
        except DatabaseUnreachable as error:
            if "locked" not in str(error) or attempt == 49:
                raise
            time.sleep(0.1)


_TRIGGER_NAMES = ("plan_begins_requested", "plan_transition", "plan_epoch")


def _trigger_rules() -> list[tuple[str, str, str, str]]:
    """Return the name, the event, the condition that is an error, and the message of each trigger."""
    legal = ", ".join(
        f"'{before}>{after}'" for before, afters in sorted(TRANSITIONS.items()) for after in sorted(afters)
    )
    return [
        ("plan_begins_requested", "INSERT", f"NEW.state <> '{PlanState.REQUESTED}'", "a plan begins as requested"),
        (
            "plan_transition",
            "UPDATE OF state",
            f"OLD.state <> NEW.state AND (OLD.state || '>' || NEW.state) NOT IN ({legal})",
            "illegal transition of a plan",
        ),
        (
            "plan_epoch",
            "UPDATE OF epoch, state",
            "NEW.epoch < OLD.epoch"
            f" OR (OLD.state <> NEW.state AND NEW.state = '{PlanState.INFLIGHT}' AND NEW.epoch = OLD.epoch)",
            "the epoch of a plan never falls, and rises at each claim",
        ),
    ]


def create_trigger_statements(dialect: str) -> list[str]:
    """Return the statements that create the triggers on ``dialect`` ('sqlite' or 'postgresql')."""
    if dialect == "sqlite":
        return [
            f"CREATE TRIGGER {name} BEFORE {event} ON plan WHEN {broken} BEGIN SELECT RAISE(ABORT, '{message}'); END"
            for name, event, broken, message in _trigger_rules()
        ]
    statements = []
    for name, event, broken, message in _trigger_rules():
        statements += [
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" RAISE EXCEPTION '{message}' USING ERRCODE = 'check_violation'; END $$",
            f"CREATE TRIGGER {name} BEFORE {event} ON plan FOR EACH ROW WHEN ({broken}) EXECUTE FUNCTION {name}()",
        ]
    return statements


def drop_trigger_statements(dialect: str) -> list[str]:
    """Return the statements that drop the triggers of ``create_trigger_statements``."""
    if dialect == "sqlite":
        return [f"DROP TRIGGER {name}" for name in _TRIGGER_NAMES]
    return [statement for n in _TRIGGER_NAMES for statement in (f"DROP TRIGGER {n} ON plan", f"DROP FUNCTION {n}()")]
