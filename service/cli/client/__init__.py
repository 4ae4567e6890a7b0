# SPDX-License-Identifier: Apache-2.0
"""A command's clients: database and tables of this machine, or with ``--url`` a running lakefold over HTTP.

Both give the same documents, and everything a command prints is made of them: so it prints the same either way.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from lake.plan import ProposalDecision
    from service.control.planning.bulk_actions import BulkActionName
    from service.control.planning.plan_request import PlanRequest
    from service.control.store import PlanFilter, TableFilter

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableList:
    """The tables in the order of a listing, and what of the sources could not be resolved, a line each."""

    tables: list[Document]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingList:
    """Settings in force: of the service, or of the table ``table`` at ``location``."""

    settings: list[Document]
    table: str | None = None
    location: str | None = None


class Client(Protocol):
    """Everything that can be asked both here and from another machine; documents as JSON holds them.

    A table is a person's word for one: its name, the unique end of it, or its path; a plan an id or a unique
    part of it. Every method raises what commands turn into an exit code, see ``service.problems.classify``.
    """

    def status(self) -> Document:
        """How the lake is, who works on it and what needs a person."""

    def tables(self, table_filter: "TableFilter", sort: str, limit: int | None) -> TableList:
        """The tables that ``terms`` mean in the order of ``sort``, as ``service.server.api.filters`` says it."""

    def databases(self, table_filter: "TableFilter") -> list[Document]:
        """What the tables of each database add up to, those with most to rewrite first."""

    def table(self, table: str) -> Document:
        """One table."""

    def explain(self, table: str, partition: str | None, *, files: bool) -> Document:
        """Lists the table's files now and accounts for them, one by one with ``files``; its items are iterable once."""

    def replay(self, table: str, days: float, settings: Sequence[str]) -> Document:
        """The table's own history under each combination of settings (``KEY=VALUE,VALUE``)."""

    def advice(self, table: str, days: float) -> Document:
        """Which writes made the table's small files, and what to change at the writer."""

    def settings(self, table: str | None) -> SettingList:
        """The settings in force and where each came from."""

    def plans(self, plan_filter: "PlanFilter", *, limit: int, after: str | None) -> list[Document]:
        """The plans that ``terms`` mean, newest first, at most ``limit``; those behind the plan ``after``."""

    def plan(self, plan: str) -> Document:
        """One plan."""

    def watch(self, plan: str) -> Iterator[Document]:
        """The progress of a plan as often as there is news, and now and then without; ends with the plan."""

    def request(
        self,
        table: str,
        wanted: "PlanRequest",
        *,
        timeout_seconds: float,
    ) -> Document:
        """Asks for plans and waits for the scheduler's answer."""

    def cancel(self, plan: str, reason: str) -> Document:
        """Cancels a plan, or asks its executor to stop before the commit."""

    def decide(self, plan: str, decision: "ProposalDecision", reason: str) -> Document:
        """Approves or declines a plan that waits for it."""

    def retry(self, plan: str) -> Document:
        """Requests a failed plan again."""

    def bulk(
        self, action: "BulkActionName", plan_filter: "PlanFilter", *, reason: str, dry_run: bool, after: str | None
    ) -> Document:
        """Does it to some of the plans that ``terms`` mean, or says which; ``next`` is where to go on."""

    def pause(self, table: str | None, reason: str) -> Document:
        """Starts no more plans, of a table or of any."""

    def halts(self, table: str) -> Document:
        """Why a table is halted, ``halted_reason``, which is None when it is not, and its ``halted_partitions``."""

    def resume(self, table: str | None) -> Document:
        """Ends a pause; of a table also its halts and its quarantine."""

    def notifications(self, *, state: str | None, limit: int, after: int | None) -> list[Document]:
        """Messages to the webhook, newest first, at most ``limit``; those behind the one with the number ``after``."""

    def retry_notifications(self, numbers: Collection[int] | None) -> Document:
        """Lets dead messages begin anew; all that are dead with None."""

    def drop_notifications(self, numbers: Collection[int] | None) -> Document:
        """Forgets dead messages; all that are dead with None."""

    def audit(
        self, *, table: str | None, actor: str | None, action: str | None, limit: int, after: int | None
    ) -> list[Document]:
        """Who asked for what, newest first, at most ``limit``; those behind the one with the number ``after``."""

    def simulate(self, scenario: Mapping[str, Any]) -> Document:
        """The files that a writer makes, as ``service.control.serializers.simulation`` has them."""

    def close(self) -> None:
        """Closes what was opened."""
