# SPDX-License-Identifier: Apache-2.0
"""Roles that one process holds at a time, each a row with an expiry on the database's clock."""

from datetime import timedelta

from sqlalchemy import delete, select, update

from service.store.base import StorePart, insert_if_absent
from service.store.clock import datetime_from_ms, db_now, timedelta_to_ms
from service.store.models import LeaderRow
from service.store.views import Leader


class Leaders(StorePart):
    """Elections by compare-and-set."""

    def acquire_leader(self, role: str, holder: str, ttl: timedelta) -> bool:
        """Take or renew ``role`` for ``ttl``; False while somebody else's hold has not expired."""
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
        """Give ``role`` up if ``holder`` has it."""
        with self._database.write(urgent=True) as connection:
            connection.execute(delete(LeaderRow).where(LeaderRow.role == role, LeaderRow.holder == holder))

    def leaders(self) -> list[Leader]:
        """Every role that was ever taken and not given up, expired ones too."""
        query = select(LeaderRow.__table__, (LeaderRow.expires_at_ms > db_now()).label("live"))
        with self._database.read() as connection:
            return [
                Leader(
                    role=row.role,
                    holder=row.holder,
                    acquired_at=datetime_from_ms(row.acquired_at_ms),
                    expires_at=datetime_from_ms(row.expires_at_ms),
                    live=bool(row.live),
                )
                for row in connection.execute(query.order_by(LeaderRow.role))
            ]
