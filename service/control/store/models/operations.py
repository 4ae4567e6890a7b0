# SPDX-License-Identifier: Apache-2.0
"""Requests and bulk actions, leaders and processes, tokens, the audit trail, and notifications."""

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.control.store.models.columns import Base, Json, RowId, in_clause, partial_index


class RequestRow(Base):
    """A request for plans, and the scheduler's answer."""

    __tablename__ = "plan_request"
    __table_args__ = (
        CheckConstraint("(answered_at_ms IS NULL) = (answer IS NULL)", name="answered_with_answer"),
        UniqueConstraint("idempotency_key"),
        partial_index("ix_plan_request_open", "id", where="answered_at_ms IS NULL"),
    )

    id: Mapped[str] = mapped_column(String, primary_key=True)
    table_name: Mapped[str] = mapped_column(String)
    partitions: Mapped[Any] = mapped_column(Json, nullable=True)
    overrides: Mapped[Any] = mapped_column(Json)
    dry_run: Mapped[bool] = mapped_column()
    kind: Mapped[str | None] = mapped_column(String)
    traceparent: Mapped[str | None] = mapped_column(String)
    #: begins with its actor, so that different actors may use the same key
    idempotency_key: Mapped[str | None] = mapped_column(String)
    actor: Mapped[str] = mapped_column(String)
    created_at_ms: Mapped[int] = mapped_column(BigInteger)
    answered_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    plan_ids: Mapped[Any] = mapped_column(Json, server_default="[]")
    answer: Mapped[Any] = mapped_column(Json, nullable=True)


class BulkActionRow(Base):
    """An action on many plans at once: its plans, reason and result."""

    __tablename__ = "bulk_action"
    __table_args__ = (
        CheckConstraint(in_clause("action", ("cancel", "retry", "approve", "decline")), name="action_known"),
        UniqueConstraint("idempotency_key"),
    )

    id: Mapped[str] = mapped_column(String, primary_key=True)
    action: Mapped[str] = mapped_column(String)
    terms: Mapped[Any] = mapped_column(Json)
    plan_ids: Mapped[Any] = mapped_column(Json)
    #: begins with its actor, so that different actors may use the same key
    idempotency_key: Mapped[str | None] = mapped_column(String)
    actor: Mapped[str] = mapped_column(String)
    reason: Mapped[str] = mapped_column(Text)
    created_at_ms: Mapped[int] = mapped_column(BigInteger)
    answer: Mapped[Any] = mapped_column(Json, nullable=True)


class LeaderRow(Base):
    """A role that only one process may hold, with its holder and expiry."""

    __tablename__ = "leader"

    role: Mapped[str] = mapped_column(String, primary_key=True)
    holder: Mapped[str] = mapped_column(String)
    acquired_at_ms: Mapped[int] = mapped_column(BigInteger)
    expires_at_ms: Mapped[int] = mapped_column(BigInteger)


class ProcessRow(Base):
    """A process of lakefold, while it sends heartbeats and for a day afterwards."""

    __tablename__ = "process"
    __table_args__ = (
        CheckConstraint(in_clause("role", ("all", "scheduler", "executor", "api")), name="role_known"),
        CheckConstraint(in_clause("spark", ("none", "starting", "running", "broken")), name="spark_known"),
        CheckConstraint("(spark = 'broken') = (problem IS NOT NULL)", name="broken_with_reason"),
    )

    #: the name of the process as the executor of plans and the holder of roles
    name: Mapped[str] = mapped_column(String, primary_key=True)
    role: Mapped[str] = mapped_column(String)
    host: Mapped[str] = mapped_column(String)
    version: Mapped[str] = mapped_column(String)
    slots: Mapped[int] = mapped_column(BigInteger)
    #: the resource groups whose plans the process runs, separated by blanks; None for all
    resource_groups: Mapped[str | None] = mapped_column(String)
    spark: Mapped[str] = mapped_column(String)
    spark_ui: Mapped[str | None] = mapped_column(String)
    problem: Mapped[str | None] = mapped_column(Text)
    config_problem: Mapped[str | None] = mapped_column(Text)
    started_at_ms: Mapped[int] = mapped_column(BigInteger)
    seen_at_ms: Mapped[int] = mapped_column(BigInteger)
    expires_at_ms: Mapped[int] = mapped_column(BigInteger)


class ReadLogRow(Base):
    """Either the position up to which a log of queries was read, or the id of a reported query that was counted."""

    __tablename__ = "read_log"

    #: the path without the suffix of a log in progress, or the id of a query
    log: Mapped[str] = mapped_column(String, primary_key=True)
    #: the size in storage at the last reading
    bytes: Mapped[int] = mapped_column(BigInteger)
    #: uncompressed bytes that were read; -1 if the log is to be ignored
    position: Mapped[int] = mapped_column(BigInteger)
    seen_at_ms: Mapped[int] = mapped_column(BigInteger)


class SourceProblemRow(Base):
    """A part of a source that the last search for tables could not read."""

    __tablename__ = "source_problem"

    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    problem: Mapped[str] = mapped_column(Text)
    since_ms: Mapped[int] = mapped_column(BigInteger)


class TokenRow(Base):
    """A bearer token of the HTTP API; the token itself is never stored."""

    __tablename__ = "api_token"
    __table_args__ = (
        CheckConstraint(in_clause("scope", ("read", "write")), name="scope_known"),
        UniqueConstraint("digest"),
    )

    name: Mapped[str] = mapped_column(String, primary_key=True)
    #: hexadecimal SHA-256; a slower hash is not needed, because a token has 256 random bits
    digest: Mapped[str] = mapped_column(String)
    scope: Mapped[str] = mapped_column(String)
    #: patterns of the tables to which the token gives access; None for all
    tables: Mapped[Any] = mapped_column(Json, nullable=True)
    #: the person whose browser got the token at sign-in; None for other tokens
    person: Mapped[str | None] = mapped_column(String)
    created_at_ms: Mapped[int] = mapped_column(BigInteger)
    created_by: Mapped[str] = mapped_column(String)
    expires_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    revoked_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    last_used_at_ms: Mapped[int | None] = mapped_column(BigInteger)


class AuditRow(Base):
    """An action and the person or program that requested it."""

    __tablename__ = "audit"
    __table_args__ = (
        CheckConstraint(in_clause("door", ("cli", "http", "page")), name="door_known"),
        Index(None, "at_ms"),
        Index(None, "table_name", "id"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    at_ms: Mapped[int] = mapped_column(BigInteger)
    actor: Mapped[str] = mapped_column(String)
    door: Mapped[str] = mapped_column(String)
    action: Mapped[str] = mapped_column(String)
    #: None for an action that does not concern one table
    table_name: Mapped[str | None] = mapped_column(String)
    subject: Mapped[str] = mapped_column(Text)
    detail: Mapped[str] = mapped_column(Text)


class NotificationRow(Base):
    """A message to the webhook or to a channel, until it is delivered or given up (dead)."""

    __tablename__ = "notification"
    __table_args__ = (
        CheckConstraint("delivered_at_ms IS NULL OR dead_at_ms IS NULL", name="one_end"),
        partial_index(
            "ix_notification_waiting", "not_before_ms", "id", where="delivered_at_ms IS NULL AND dead_at_ms IS NULL"
        ),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    event: Mapped[str] = mapped_column(String)
    #: the name of the channel, None for the webhook
    channel: Mapped[str | None] = mapped_column(String)
    body: Mapped[Any] = mapped_column(Json)
    created_at_ms: Mapped[int] = mapped_column(BigInteger)
    attempts: Mapped[int] = mapped_column(BigInteger, server_default="0")
    not_before_ms: Mapped[int] = mapped_column(BigInteger)
    delivered_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    dead_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    error: Mapped[str | None] = mapped_column(Text)
