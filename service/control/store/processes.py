# SPDX-License-Identifier: Apache-2.0
"""Processes with their heartbeats, and leaders: rows with an expiry by the database's clock."""

from datetime import timedelta

from sqlalchemy import delete, select, update

from service.control.store.base import StorePart, insert_if_absent, storable_text
from service.control.store.clock_corrections import correct_future_times
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.models import LeaderRow, ProcessRow
from service.control.store.rows import view_of
from service.control.store.views import Leader, ProcessFacts, ProcessView

#: a process that ended without unregistering is listed for this time
_SILENT_REMEMBERED = timedelta(days=1)


class Processes(StorePart):
    """The registered processes."""

    def register_process(self, process: ProcessFacts, ttl: timedelta) -> None:
        """Record the heartbeat and the facts of ``process``, valid for ``ttl``. Deletes processes silent for a day.

        Also corrects times in the future, which show that the database's clock was set back.
        """
        facts = {
            "role": process.role,
            "host": process.host,
            "version": process.version,
            "slots": process.slots,
            "resource_groups": process.resource_groups,
            "spark": process.spark,
            "spark_ui": process.spark_ui,
            **{
                name: None if text is None else storable_text(text)
                for name, text in (("problem", process.problem), ("config_problem", process.config_problem))
            },
            "seen_at_ms": db_now(),
            "expires_at_ms": db_now() + timedelta_to_ms(ttl),
        }
        with self._database.write(urgent=True) as connection:
            correct_future_times(connection, ttl)
            known = update(ProcessRow).where(ProcessRow.name == process.name).values(**facts)
            if not connection.execute(known).rowcount:
                insert_if_absent(connection, ProcessRow, name=process.name, started_at_ms=db_now(), **facts)
                old = ProcessRow.expires_at_ms < db_now() - timedelta_to_ms(_SILENT_REMEMBERED)
                connection.execute(delete(ProcessRow).where(old))

    def unregister_process(self, name: str) -> None:
        """Delete the record of the process ``name``, which is about to end."""
        with self._database.write(urgent=True) as connection:
            connection.execute(delete(ProcessRow).where(ProcessRow.name == name))

    def processes(self) -> list[ProcessView]:
        """Return every live process, and those that became silent within the last day, sorted by name."""
        query = select(ProcessRow.__table__, (ProcessRow.expires_at_ms > db_now()).label("live"))
        old = ProcessRow.expires_at_ms < db_now() - timedelta_to_ms(_SILENT_REMEMBERED)
        with self._database.read() as connection:
            rows = connection.execute(query.where(~old).order_by(ProcessRow.name))
            return [view_of(ProcessView, row) for row in rows]


class Leaders(StorePart):
    """Roles that one process at a time may hold, taken by compare-and-set."""

    def acquire_leader(self, role: str, holder: str, ttl: timedelta) -> bool:
        """Take or renew ``role`` for ``ttl``. Returns False if another process holds it."""
        expires = db_now() + timedelta_to_ms(ttl)
        with self._database.write(urgent=True) as connection:
            this_role = update(LeaderRow).where(LeaderRow.role == role)
            if connection.execute(this_role.where(LeaderRow.holder == holder).values(expires_at_ms=expires)).rowcount:
                return True
            taken = connection.execute(
                this_role.where(LeaderRow.expires_at_ms <= db_now()).values(
                    holder=holder, acquired_at_ms=db_now(), expires_at_ms=expires
                )
            ).rowcount
            return taken == 1 or insert_if_absent(
                connection, LeaderRow, role=role, holder=holder, acquired_at_ms=db_now(), expires_at_ms=expires
            )

    def release_leader(self, role: str, holder: str) -> None:
        """Release ``role`` if ``holder`` holds it."""
        with self._database.write(urgent=True) as connection:
            connection.execute(delete(LeaderRow).where(LeaderRow.role == role, LeaderRow.holder == holder))

    def leaders(self) -> list[Leader]:
        """Return every role that was taken and not released, including expired ones."""
        query = select(LeaderRow.__table__, (LeaderRow.expires_at_ms > db_now()).label("live"))
        with self._database.read() as connection:
            return [view_of(Leader, row) for row in connection.execute(query.order_by(LeaderRow.role))]
