# SPDX-License-Identifier: Apache-2.0
"""The clients of a command: the local database and tables, or with ``--url`` a running lakefold over HTTP.

Both clients return the same documents. Commands print only these documents, so their output does not depend on the
client.
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
    """The tables in the order of a listing, and one line for each source that could not be resolved."""

    tables: list[Document]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingList:
    """The settings in force of the service, or of the table ``table`` at ``location``."""

    settings: list[Document]
    table: str | None = None
    location: str | None = None


class Client(Protocol):
    """The operations that work both locally and over HTTP. Documents hold JSON values.

    A ``table`` argument is a table's name, a unique ending of the name, or the table's path. A ``plan`` argument is an
    id or a unique part of an id. ``service.problems.classify`` maps the errors of every method to exit codes.
    """

    def status(self) -> Document:
        """Return the state of the lake, the processes, and the tables that need attention."""

    def tables(self, table_filter: "TableFilter", sort: str, limit: int | None) -> TableList:
        """Return the tables that match ``table_filter``; ``sort`` is an order of ``service.server.api.filters``."""

    def databases(self, table_filter: "TableFilter") -> list[Document]:
        """Return the totals of each database's tables, the database with the most bytes to rewrite first."""

    def report(self, by: str, table_filter: "TableFilter") -> list[Document]:
        """Return figures and savings of tables, summed ``by`` owner, tag or database; most rewritten bytes first."""

    def table(self, table: str) -> Document:
        """Return one table."""

    def explain(self, table: str, partition: str | None, *, files: bool) -> Document:
        """List the table's files now and return the planner's decision on each, file by file with ``files``.

        The ``items`` of the document can be iterated only once.
        """

    def history(self, table: str, *, limit: int, after: str | None, files: int) -> Document:
        """Return at most ``limit`` actions on the table, newest first, as ``items``, with ``notes`` and ``next``.

        Each action lists at most ``files`` added files and at most ``files`` removed files.
        """

    def replay(self, table: str, days: float, settings: Sequence[str]) -> Document:
        """Replay the table's own history under each combination of settings (``KEY=VALUE,VALUE``)."""

    def advice(self, table: str, days: float) -> Document:
        """Return which writes created the table's small files, and which setting of the writer to change."""

    def settings(self, table: str | None) -> SettingList:
        """Return the settings in force and the origin of each."""

    def plans(self, plan_filter: "PlanFilter", *, limit: int, after: str | None) -> list[Document]:
        """Return at most ``limit`` plans that match ``plan_filter``, newest first; with ``after`` only older plans."""

    def plan(self, plan: str) -> Document:
        """Return one plan."""

    def watch(self, plan: str) -> Iterator[Document]:
        """Yield a plan's progress at each change, and occasionally without a change, until the plan ends."""

    def request(
        self,
        table: str,
        wanted: "PlanRequest",
        *,
        timeout_seconds: float,
    ) -> Document:
        """Request plans and wait for the scheduler's answer."""

    def cancel(self, plan: str, reason: str) -> Document:
        """Cancel a requested plan, or request that the executor of an inflight plan stops before its commit."""

    def decide(self, plan: str, decision: "ProposalDecision", reason: str) -> Document:
        """Approve or decline a plan that waits for approval."""

    def retry(self, plan: str) -> Document:
        """Request a failed plan again."""

    def bulk(
        self, action: "BulkActionName", plan_filter: "PlanFilter", *, reason: str, dry_run: bool, after: str | None
    ) -> Document:
        """Apply ``action`` to one page of the plans that match ``plan_filter``; with ``dry_run`` only list them.

        The document's ``next`` is the ``after`` of the next page, or None on the last page.
        """

    def pause(self, table: str | None, reason: str) -> Document:
        """Pause a table, or the whole service if None: no further plan starts."""

    def halts(self, table: str) -> Document:
        """Return a table's ``halted_reason``, None if the table is not halted, and its ``halted_partitions``."""

    def resume(self, table: str | None) -> Document:
        """End the pause of a table, or of the service if None; for a table also end its halts and its quarantine."""

    def notifications(self, *, state: str | None, limit: int, after: int | None) -> list[Document]:
        """Return at most ``limit`` notifications, newest first; with ``after`` only lower numbers."""

    def retry_notifications(self, numbers: Collection[int] | None) -> Document:
        """Send the dead notifications with these numbers again, or all dead ones if None."""

    def drop_notifications(self, numbers: Collection[int] | None) -> Document:
        """Delete the dead notifications with these numbers, or all dead ones if None."""

    def audit(
        self, *, table: str | None, actor: str | None, action: str | None, limit: int, after: int | None
    ) -> list[Document]:
        """Return at most ``limit`` entries of the audit trail, newest first; with ``after`` only lower numbers."""

    def simulate(self, scenario: Mapping[str, Any]) -> Document:
        """Simulate a writer; returns the document of ``service.control.serializers.simulation``."""

    def close(self) -> None:
        """Close the connections that were opened."""
