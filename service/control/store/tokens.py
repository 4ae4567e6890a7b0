# SPDX-License-Identifier: Apache-2.0
"""Bearer tokens of the HTTP API. Only their digests are stored."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from sqlalchemy import and_, delete, insert, not_, or_, select, update

from service.control.store.audit import record_audit
from service.control.store.base import StorePart
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.errors import NotFound, WrongState
from service.control.store.models import TokenRow
from service.control.store.rows import view_of
from service.control.store.table_scope import UNRESTRICTED, TableScope
from service.control.store.views import Bearer, Token

_IN_FORCE = (TokenRow.revoked_at_ms.is_(None), or_(TokenRow.expires_at_ms.is_(None), TokenRow.expires_at_ms > db_now()))


class Tokens(StorePart):
    """Tokens of the HTTP API. They expire by the database's clock."""

    def add_token(
        self,
        name: str,
        *,
        digest: str,
        scope: str,
        expires_in: timedelta | None,
        actor: str,
        table_scope: TableScope = UNRESTRICTED,
        person: str | None = None,
    ) -> None:
        """Store a token with access to the tables in ``table_scope``. ``digest`` is its hexadecimal SHA-256.

        ``person`` is the person whose browser gets the token at sign-in. The name of a revoked or expired token may be
        used again. Raises WrongState if a token of this name is in force.
        """
        with self._database.write() as connection:
            # Read once, because two readings in one statement may differ by a millisecond.
            now = connection.execute(select(db_now())).scalar_one()
            values: dict[str, Any] = {
                "digest": digest,
                "scope": scope,
                "person": person,
                "created_at_ms": now,
                "created_by": actor,
                "tables": None if table_scope.patterns is None else list(table_scope.patterns),
                "revoked_at_ms": None,
                "expires_at_ms": None if expires_in is None else now + timedelta_to_ms(expires_in),
                "last_used_at_ms": None,
            }
            known = select(TokenRow.name).where(TokenRow.name == name)
            if connection.execute(known.where(*_IN_FORCE)).one_or_none() is not None:
                raise WrongState(
                    f"a token {name!r} is in force; choose another name, or: lakefold tokens revoke {name}"
                )
            if connection.execute(known).one_or_none() is not None:
                connection.execute(update(TokenRow).where(TokenRow.name == name).values(**values))
            else:
                connection.execute(insert(TokenRow).values(name=name, **values))
            action = "token added" if person is None else "signed in"
            record_audit(connection, actor, action, subject=name, detail=f"scope {scope}, {table_scope.text}")

    def revoke_token(self, name: str, *, actor: str) -> None:
        """Revoke a token. A token that was revoked before keeps its time of revocation. Raises NotFound."""
        with self._database.write() as connection:
            if connection.execute(select(TokenRow.name).where(TokenRow.name == name)).one_or_none() is None:
                raise NotFound(f"no token {name!r}")
            revoked = update(TokenRow).where(TokenRow.name == name, TokenRow.revoked_at_ms.is_(None))
            if connection.execute(revoked.values(revoked_at_ms=db_now())).rowcount:
                record_audit(connection, actor, "token revoked", subject=name)

    def tokens(self) -> list[Token]:
        """Return all tokens sorted by name, including revoked and expired ones."""
        in_force = select(TokenRow.name).where(*_IN_FORCE)
        with self._database.read() as connection:
            live = set(connection.execute(in_force).scalars())
            rows = connection.execute(select(TokenRow.__table__).order_by(TokenRow.name))
            return [view_of(Token, row, in_force=row.name in live) for row in rows]

    def tokens_in_force(self) -> dict[str, Bearer]:
        """Return digest → bearer, for the tokens that are neither revoked nor expired."""
        query = select(TokenRow.digest, TokenRow.name, TokenRow.scope, TokenRow.tables, TokenRow.person)
        with self._database.read() as connection:
            return {
                row.digest: Bearer(
                    name=row.name,
                    scope=row.scope,
                    table_scope=UNRESTRICTED if row.tables is None else TableScope(tuple(row.tables)),
                    person=row.person,
                )
                for row in connection.execute(query.where(*_IN_FORCE))
            }

    def prune_sign_ins(self) -> int:
        """Delete the expired and revoked tokens of sign-ins. Returns the number of deleted tokens."""
        ended = select(TokenRow.name).where(TokenRow.person.is_not(None), not_(and_(*_IN_FORCE)))
        with self._database.write() as connection:
            return int(connection.execute(delete(TokenRow).where(TokenRow.name.in_(ended))).rowcount)

    def record_token_use(self, names: Collection[str]) -> None:
        """Record that these tokens were used now."""
        with self._database.write() as connection:
            connection.execute(update(TokenRow).where(TokenRow.name.in_(names)).values(last_used_at_ms=db_now()))
