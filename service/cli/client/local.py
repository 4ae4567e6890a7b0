# SPDX-License-Identifier: Apache-2.0
"""The client that reads the local database and tables directly."""

import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cli.client import Document, SettingList, TableList
from service.control import serializers
from service.control.config.catalog import Catalog
from service.control.config.loader import Config
from service.control.config.table_settings import configure_table
from service.control.lake_cache import read_lake_state
from service.control.serializers import queries
from service.control.wiring import open_config, open_store
from service.text import to_jsonable

if TYPE_CHECKING:
    from lake.plan import ProposalDecision
    from service.control.config.table_settings import ConfiguredTable
    from service.control.planning.bulk_actions import BulkActionName
    from service.control.planning.plan_request import PlanRequest
    from service.control.store import PlanFilter, Store, TableFilter

_POLL_SECONDS = 0.5

#: scans of up to this many tables are read by name; for a longer list, those of all tables are read
_MAX_NAMES = 1000


class LocalClient:
    """The local implementation of ``service.cli.client.Client``.

    Configuration and database are opened at their first use. ``actor`` is the name that the audit trail records.
    """

    def __init__(self, config_file: Path | None, actor: str) -> None:
        self._config_file, self._actor = config_file, actor

    @cached_property
    def config(self) -> Config:
        """Load the configuration. Raises ConfigError."""
        return open_config(self._config_file)

    @cached_property
    def store(self) -> "Store":
        """Open the database and check its schema. Raises SchemaMismatch or DatabaseUnreachable."""
        return open_store(self.config)

    @cached_property
    def catalog(self) -> Catalog:
        """Return the tables of the configuration and of the database."""
        return Catalog(self.config, registered=self.store.table_states)

    def status(self) -> Document:
        return _to_document(serializers.status(read_lake_state(self.store)))

    def tables(self, table_filter: "TableFilter", sort: str, limit: int | None) -> TableList:
        from service.control.store import TableOrder

        order, descending = TableOrder(sort.removeprefix("-")), sort.startswith("-")
        tables = {table.name: table for table in self.catalog.tables()}
        most = sys.maxsize if limit is None else limit
        names = self.store.list_tables(order, descending=descending, limit=most, **table_filter).names
        states = {state.name: state for state in self.store.table_states()}
        for name in names:  # tables in the database that no source covers now
            tables.setdefault(name, configure_table(self.config, states[name].ref))
        # Tables that were never scanned have no figures to sort by. They follow, sorted by name.
        new = sorted(
            name for name, table in tables.items() if name not in states and _matches_filter(table, table_filter)
        )
        shown = [*names, *new][:most]
        # A database takes only so many names in one query.
        scans = self.store.reference_scans(names=shown if len(shown) <= _MAX_NAMES else None)
        return TableList(
            tables=[
                _to_document(serializers.table_summary(tables[name], states.get(name), scans.of(name)))
                for name in shown
            ],
            problems=tuple(self.catalog.problems),
        )

    def databases(self, table_filter: "TableFilter") -> list[Document]:
        return _to_documents(self.store.database_sums(**table_filter))

    def report(self, by: str, table_filter: "TableFilter") -> list[Document]:
        figures = read_lake_state(self.store).figures
        return _to_documents(serializers.report(by, self.store.table_totals(**table_filter), figures))

    def table(self, table: str) -> Document:
        return _to_document(queries.load_table(self.store, self.catalog.find(table)))

    def explain(self, table: str, partition: str | None, *, files: bool) -> Document:
        from lake.capabilities import likely_writers
        from service.control.planning import scan
        from service.control.planning.decision_summary import explanation_document
        from service.control.planning.observed_reads import with_observed_reads

        found = with_observed_reads(self.store, self.catalog.find(table))
        decided = scan.explain_table(self.store, found, None if partition is None else partition.strip("/"))
        writers = likely_writers(found.adapter, decided.snapshot)
        document = explanation_document(found, decided, files=files, is_partial=partition is not None, writers=writers)
        # A table may have millions of files: each item is serialized when it is printed.
        return _to_document(document | {"items": ()}) | {"items": map(_to_document, document["items"])}

    def history(self, table: str, *, limit: int, after: str | None, files: int) -> Document:
        from service.control.planning.table_history import load_actions

        found = load_actions(self.store, self.catalog.find(table), limit=limit, max_files=files, before=after)
        items = _to_documents(serializers.action_documents(found))
        return {"items": items, "notes": list(found.page.notes), "next": found.page.next_key}

    def replay(self, table: str, days: float, settings: Sequence[str]) -> Document:
        from service.control.planning.replay import parse_grid, replay_table

        grid = parse_grid(settings)
        found = replay_table(self.config, self.store, self.catalog.find(table), days=days, grid=grid)
        return _to_document(serializers.replay(found.table, found.history, found.comparison, found.rates))

    def advice(self, table: str, days: float) -> Document:
        from service.control.planning.replay import advise_table

        found = self.catalog.find(table)
        return _to_document(serializers.advice(found.name, *advise_table(self.store, found, days=days)))

    def settings(self, table: str | None) -> SettingList:
        if table is None:
            return SettingList(settings=_to_documents(serializers.service_settings(self.config)))
        from service.control.planning.observed_reads import with_observed_reads

        found = self.catalog.find(table)
        return SettingList(
            settings=_to_documents(serializers.table_settings(with_observed_reads(self.store, found))),
            table=found.name,
            location=found.ref.location,
        )

    def plans(self, plan_filter: "PlanFilter", *, limit: int, after: str | None) -> list[Document]:
        plans = self.store.plans(**self._resolve_filter(plan_filter), limit=limit, after=after)
        return _to_documents(serializers.plan_summary(plan) for plan in plans)

    def plan(self, plan: str) -> Document:
        return _to_document(queries.load_plan(self.store, plan))

    def watch(self, plan: str) -> Iterator[Document]:
        plan_id = self.store.plan(plan).plan_id
        while True:
            document = _to_document(serializers.plan_progress(self.store.plan(plan_id)))
            yield document
            if document["state"] in serializers.TERMINAL_STATES:
                return
            time.sleep(_POLL_SECONDS)

    def request(
        self,
        table: str,
        wanted: "PlanRequest",
        *,
        timeout_seconds: float,
    ) -> Document:
        from service.control.planning.requests import submit_and_wait

        found = self.catalog.find(table)
        answer = submit_and_wait(
            self.config, self.store, found, wanted, actor=self._actor, timeout_seconds=timeout_seconds
        )
        return answer.document()

    def cancel(self, plan: str, reason: str) -> Document:
        plan_id = self.store.plan(plan).plan_id
        state = self.store.request_cancel(plan_id, actor=self._actor, reason=reason)
        return _to_document(serializers.plan_cancelled(plan_id, state))

    def decide(self, plan: str, decision: "ProposalDecision", reason: str) -> Document:
        from lake.plan import ProposalDecision

        plan_id = self.store.plan(plan).plan_id
        decide = self.store.approve if decision is ProposalDecision.APPROVED else self.store.decline
        decide(plan_id, self._actor, reason)
        return _to_document(serializers.plan_decided(plan_id, decision))

    def retry(self, plan: str) -> Document:
        plan_id = self.store.plan(plan).plan_id
        self.store.retry(plan_id, actor=self._actor)
        return serializers.plan_retried(plan_id)

    def bulk(
        self, action: "BulkActionName", plan_filter: "PlanFilter", *, reason: str, dry_run: bool, after: str | None
    ) -> Document:
        from service.control.planning import bulk_actions

        meant = self._resolve_filter(plan_filter)
        if dry_run:
            return bulk_actions.preview_bulk_action(self.store, action, meant, after)
        return bulk_actions.run_bulk_action(self.store, action, meant, actor=self._actor, reason=reason, after=after)

    def pause(self, table: str | None, reason: str) -> Document:
        name = None if table is None else self._registered_name(table)
        self.store.pause(name, self._actor, reason)
        return serializers.pause_result(name, True)

    def halts(self, table: str) -> Document:
        state = self.store.table_state(self._registered_name(table))
        partitions = serializers.halted_partitions(state)
        return _to_document({"halted_reason": state.halted_reason, "halted_partitions": partitions})

    def resume(self, table: str | None) -> Document:
        name = None if table is None else self._registered_name(table)
        self.store.resume(name, self._actor)
        return serializers.pause_result(name, False)

    def notifications(self, *, state: str | None, limit: int, after: int | None) -> list[Document]:
        from service.control.store import NotificationState

        found = self.store.notifications(NotificationState(state) if state else None, limit, after)
        return _to_documents(serializers.notification(message) for message in found)

    def retry_notifications(self, numbers: Collection[int] | None) -> Document:
        return serializers.notifications_retried(self.store.retry_notifications(numbers, actor=self._actor))

    def drop_notifications(self, numbers: Collection[int] | None) -> Document:
        return serializers.notifications_dropped(self.store.drop_notifications(numbers, actor=self._actor))

    def audit(
        self, *, table: str | None, actor: str | None, action: str | None, limit: int, after: int | None
    ) -> list[Document]:
        found = self.store.audit_entries(table=table, actor=actor, action=action, limit=limit, after=after)
        return _to_documents(serializers.audit_entry(entry) for entry in found)

    def simulate(self, scenario: Mapping[str, Any]) -> Document:
        return _to_document(serializers.simulation(scenario))

    def close(self) -> None:
        if "store" in self.__dict__:
            self.store.close()

    def _resolve_filter(self, plan_filter: "PlanFilter") -> "PlanFilter":
        table = plan_filter.get("table")
        return plan_filter if table is None else {**plan_filter, "table": self._table_name(table)}

    def _table_name(self, word: str) -> str:
        """Return the full name of a table of the configuration or of the database."""
        return word if word in self._registered_names() else self.catalog.find(word).name

    def _registered_name(self, word: str) -> str:
        """Return the full name of a table; registers the table in the database unless it is registered."""
        if word in self._registered_names():
            return word
        found = self.catalog.find(word)
        self.store.register_table(found.ref, found.mode, found.owner, found.tags, found.resource_group)
        return found.name

    def _registered_names(self) -> set[str]:
        return {state.name for state in self.store.table_states()}


def _to_document(values: Mapping[str, Any]) -> Document:
    return dict(to_jsonable(values))


def _to_documents(found: Any) -> list[Document]:
    return [_to_document(values) for values in found]


def _matches_filter(table: "ConfiguredTable", table_filter: "TableFilter") -> bool:
    """Return True if ``table_filter`` matches a table that is not in the database."""
    from service.control.store.table_list import database_of

    known = {
        "state": table.mode,
        "mode": table.mode,
        "format": table.ref.format,
        "owner": table.owner,
        "database": database_of(table.name),
        "name": table.name,
    }
    part, tag = (table_filter.get("name") or "").lower(), table_filter.get("tag")
    return (
        part in table.name.lower()
        and (tag is None or tag in table.tags)
        and all(
            known[key] == value
            for key, value in table_filter.items()
            if value is not None and key not in ("name", "tag")
        )
    )
