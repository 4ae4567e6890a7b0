# SPDX-License-Identifier: Apache-2.0
"""Requests, bulk actions, processes, tokens, the audit trail, and notifications."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from lake.plan import PlanKind
from service.control.store.table_scope import UNRESTRICTED, TableScope


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for plans by a person or program; ``answer`` is None until the scheduler has answered it."""

    request_id: str
    table: str
    partitions: tuple[str, ...] | None
    overrides: Mapping[str, Any]
    dry_run: bool
    kind: PlanKind | None
    idempotency_key: str | None
    actor: str
    created_at: datetime
    plan_ids: tuple[str, ...]
    answer: Mapping[str, Any] | None
    #: the caller's W3C trace context, None if the caller sent none
    traceparent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAction:
    """An action on many plans; ``answer`` is None until the action has been applied to all of ``plan_ids``."""

    action_id: str
    action: str
    terms: Mapping[str, Any]
    plan_ids: tuple[str, ...]
    actor: str
    reason: str
    created_at: datetime
    answer: Mapping[str, Any] | None


class NotificationState(StrEnum):
    """The state of a message: waiting, delivered (the receiver has accepted it), or dead (its last attempt failed)."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A message to ``channel``, or to the webhook if that is None.

    ``body`` is sent together with a link. ``error`` describes the last failed attempt.
    """

    number: int
    event: str
    channel: str | None
    body: Mapping[str, Any]
    created_at: datetime
    attempts: int
    not_before: datetime
    delivered_at: datetime | None
    dead_at: datetime | None
    error: str | None

    @property
    def state(self) -> NotificationState:
        """The state of the message."""
        if self.dead_at is not None:
            return NotificationState.DEAD
        return NotificationState.WAITING if self.delivered_at is None else NotificationState.DELIVERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The holder of a singleton role. ``live`` is True until its expiry, by the database's clock."""

    role: str
    holder: str
    acquired_at: datetime
    expires_at: datetime
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """The facts that a process reports. ``spark`` is none, starting, running, or broken with a ``problem``.

    ``config_problem`` is the reason why the process does not use the present configuration file; None if it does.
    """

    name: str
    role: str
    host: str
    version: str
    slots: int
    #: names of resource groups, separated by blanks; None for all
    resource_groups: str | None = None
    spark: str = "none"
    spark_ui: str | None = None
    problem: str | None = None
    config_problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView(ProcessFacts):
    """A registered process. ``live`` is True until its expiry, by the database's clock."""

    started_at: datetime
    seen_at: datetime
    live: bool

    @property
    def can_execute(self) -> bool:
        """True if the process is live and runs plans."""
        return self.live and self.role in ("all", "executor")

    def serves_group(self, group: str) -> bool:
        """True if the process can run plans of the resource group now."""
        in_group = self.resource_groups is None or group in self.resource_groups.split()
        return self.can_execute and self.problem is None and in_group


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWait:
    """The number of plans of a table that may run, and the resource group whose executors run them."""

    group: str
    plans: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProblem:
    """A part of a source that the last search for tables could not read: a line of text, and its first time."""

    problem: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """The bearer of a valid token. ``person`` is the person whose browser got the token at sign-in."""

    name: str
    scope: str
    table_scope: TableScope = UNRESTRICTED
    person: str | None = None


class AccessChannel(StrEnum):
    """The channel through which an action was requested."""

    CLI = "cli"
    HTTP = "http"
    PAGE = "page"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An action and its actor. ``subject`` is the plan, request, token or message concerned."""

    number: int
    at: datetime
    actor: str
    door: AccessChannel
    action: str
    table: str | None
    subject: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bearer token as people see it. ``in_force`` is True if it is neither revoked nor expired.

    ``tables`` are patterns of the tables to which it gives access; None for all. ``person`` is the person whose browser
    got it at sign-in; None for other tokens.
    """

    name: str
    scope: str
    tables: tuple[str, ...] | None
    person: str | None
    in_force: bool
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
