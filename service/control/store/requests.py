# SPDX-License-Identifier: Apache-2.0
"""Requests for plans, which people and programs send and the scheduler answers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, select, update
from uuid_utils import uuid7

from lake.plan import PlanKind
from lake.trace import current_traceparent
from service.control.store.audit import record_audit
from service.control.store.base import StorePart, actor_idempotency_key, insert_if_absent
from service.control.store.database import db_now
from service.control.store.errors import IdempotencyMismatch, NotFound
from service.control.store.models import RequestRow
from service.control.store.plan_queries import resolve_id
from service.control.store.rows import view_of
from service.control.store.views import Request


class Requests(StorePart):
    """Requests and their answers."""

    def add_request(
        self,
        table: str,
        *,
        partitions: Sequence[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
        actor: str,
        kind: PlanKind | None = None,
    ) -> str:
        """Request plans of ``table``, or only of ``partitions`` or ``kind``, with policy ``overrides``; return the id.

        If the actor has used ``idempotency_key`` before, returns the id of that request. Raises IdempotencyMismatch if
        that was a different request.
        """
        body = {
            "table_name": table,
            "partitions": None if partitions is None else sorted(set(partitions)),
            "overrides": dict(overrides or {}),
            "dry_run": dry_run,
            "kind": kind,
        }
        request_id, key = str(uuid7()), actor_idempotency_key(actor, idempotency_key)
        with self._database.write() as connection:
            if insert_if_absent(
                connection,
                RequestRow,
                id=request_id,
                idempotency_key=key,
                actor=actor,
                created_at_ms=db_now(),
                traceparent=current_traceparent(),
                **body,
            ):
                event = "dry run requested" if dry_run else "plans requested"
                record_audit(connection, actor, event, table=table, subject=request_id)
                return request_id
            first = connection.execute(select(RequestRow.__table__).where(RequestRow.idempotency_key == key)).one()
        if any(getattr(first, column) != value for column, value in json.loads(json.dumps(body)).items()):
            raise IdempotencyMismatch(
                f"idempotency key {idempotency_key!r} was used for another request, {first.id}; use a new key"
            )
        return str(first.id)

    def has_request(self, idempotency_key: str, actor: str) -> bool:
        """Return True if ``actor`` has sent a request with this key."""
        known = select(RequestRow.id).where(RequestRow.idempotency_key == actor_idempotency_key(actor, idempotency_key))
        with self._database.read() as connection:
            return connection.execute(known).one_or_none() is not None

    def open_requests(self) -> list[Request]:
        """Return the requests without an answer, oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(RequestRow.__table__).where(RequestRow.answered_at_ms.is_(None)).order_by(RequestRow.id)
            )
            return [_request(row) for row in rows]

    def answer_request(self, request_id: str, *, plan_ids: Sequence[str] = (), answer: Mapping[str, Any]) -> None:
        """Answer a request once; a later answer changes nothing. Raises NotFound."""
        with self._database.write() as connection:
            answered = connection.execute(
                update(RequestRow)
                .where(RequestRow.id == request_id, RequestRow.answered_at_ms.is_(None))
                .values(answered_at_ms=db_now(), plan_ids=list(plan_ids), answer=dict(answer))
            ).rowcount
            known = select(RequestRow.id).where(RequestRow.id == request_id)
            if answered == 0 and connection.execute(known).one_or_none() is None:
                raise NotFound(f"no request {request_id!r}")

    def request(self, request_id: str) -> Request:
        """Return one request; ``request_id`` may be a unique part of an id. Raises NotFound, AmbiguousId."""
        with self._database.read() as connection:
            request_id = resolve_id(
                connection, RequestRow.id, request_id, "request", self._is_in_scope(RequestRow.table_name)
            )
            return _request(connection.execute(select(RequestRow.__table__).where(RequestRow.id == request_id)).one())


def _request(row: Row[Any]) -> Request:
    key = row.idempotency_key and row.idempotency_key.removeprefix(f"{row.actor}\n")
    return view_of(Request, row, request_id=row.id, table=row.table_name, idempotency_key=key)
