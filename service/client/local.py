# SPDX-License-Identifier: Apache-2.0
"""The database and the tables of this machine, asked directly."""

import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service import documents
from service.client import Document, SettingList, TableList
from service.config.catalog import Catalog
from service.config.loader import Config
from service.config.tables import configure
from service.documents import readings
from service.documents.lake_cache import read_lake
from service.text import plain
from service.wiring import open_config, open_store

if TYPE_CHECKING:
    from lake.plan import Decision
    from service.config.tables import ConfiguredTable
    from service.planning.bulk import Action
    from service.planning.plan_request import PlanRequest
    from service.store import PlanTerms, Store, TableTerms

_POLL_SECONDS = 0.5


class LocalClient:
    """Implements ``service.client.Client``; configuration and database are opened at their first use.

    ``actor`` is who acts, for the audit trail.
    """

    def __init__(self, config_file: Path | None, actor: str) -> None:
        self._config_file, self._actor = config_file, actor

    @cached_property
    def config(self) -> Config:
        """The configuration. Raises ConfigError."""
        return open_config(self._config_file)

    @cached_property
    def store(self) -> "Store":
        """The database, checked. Raises SchemaBehind or DatabaseUnreachable."""
        return open_store(self.config)

    @cached_property
    def catalog(self) -> Catalog:
        """The tables of the configuration, and those the database remembers."""
        return Catalog(self.config, known=self.store.tables)

    def status(self) -> Document:
        return _document(documents.status(read_lake(self.store)))

    def tables(self, terms: "TableTerms", sort: str, limit: int | None) -> TableList:
        from service.store import TableOrder

        order, descending = TableOrder(sort.removeprefix("-")), sort.startswith("-")
        tables = {table.name: table for table in self.catalog.tables()}
        most = sys.maxsize if limit is None else limit
        names = self.store.list_tables(order, descending=descending, limit=most, **terms).names
        states, scans = {state.name: state for state in self.store.tables()}, self.store.last_scans()
        for name in names:  # seen before, but no source covers them now
            tables.setdefault(name, configure(self.config, states[name].ref))
        # Of what no scheduler has seen yet there is nothing to put it in order by.
        new = sorted(name for name, table in tables.items() if name not in states and _is_meant(table, terms))
        shown = [*names, *new][:most]
        return TableList(
            tables=[
                _document(documents.table_summary(tables[name], states.get(name), scans.get(name))) for name in shown
            ],
            problems=tuple(self.catalog.problems),
        )

    def databases(self, terms: "TableTerms") -> list[Document]:
        return _documents(self.store.databases(**terms))

    def table(self, table: str) -> Document:
        return _document(readings.table(self.store, self.catalog.find(table)))

    def explain(self, table: str, partition: str | None, *, files: bool) -> Document:
        from service.planning import scan
        from service.planning.account import explanation

        found = self.catalog.find(table)
        decided = scan.explain(self.store, found, None if partition is None else partition.strip("/"))
        writers = scan.writers_of(decided)
        document = explanation(found, decided, files=files, part=partition is not None, writers=writers)
        # A table may have millions of files: they are made as they are printed.
        return _document(document | {"items": ()}) | {"items": map(_document, document["items"])}

    def replay(self, table: str, days: float, settings: Sequence[str]) -> Document:
        from service.planning.replay import grid_of, replay_table

        grid = grid_of(settings)
        found = replay_table(self.config, self.store, self.catalog.find(table), days=days, grid=grid)
        return _document(documents.replay(found.table, found.history, found.comparison, found.rates))

    def advice(self, table: str, days: float) -> Document:
        from service.planning.replay import advise_table

        found = self.catalog.find(table)
        return _document(documents.advice(found.name, *advise_table(self.store, found, days=days)))

    def settings(self, table: str | None) -> SettingList:
        if table is None:
            return SettingList(settings=_documents(documents.service_settings(self.config)))
        found = self.catalog.find(table)
        return SettingList(
            settings=_documents(documents.table_settings(found)), table=found.name, location=found.ref.location
        )

    def plans(self, terms: "PlanTerms", *, limit: int, after: str | None) -> list[Document]:
        plans = self.store.plans(**self._meant(terms), limit=limit, after=after)
        return _documents(documents.plan_summary(plan) for plan in plans)

    def plan(self, plan: str) -> Document:
        return _document(readings.plan(self.store, plan))

    def watch(self, plan: str) -> Iterator[Document]:
        plan_id = self.store.plan(plan).plan_id
        while True:
            document = _document(documents.plan_progress(self.store.plan(plan_id)))
            yield document
            if document["state"] in documents.TERMINAL:
                return
            time.sleep(_POLL_SECONDS)

    def request(
        self,
        table: str,
        wanted: "PlanRequest",
        *,
        timeout_seconds: float,
    ) -> Document:
        from service.planning.requests import ask

        found = self.catalog.find(table)
        answer = ask(self.config, self.store, found, wanted, actor=self._actor, timeout_seconds=timeout_seconds)
        return answer.document()

    def cancel(self, plan: str, reason: str) -> Document:
        plan_id = self.store.plan(plan).plan_id
        state = self.store.request_cancel(plan_id, actor=self._actor, reason=reason)
        return _document(documents.plan_cancelled(plan_id, state))

    def decide(self, plan: str, decision: "Decision", reason: str) -> Document:
        from lake.plan import Decision

        plan_id = self.store.plan(plan).plan_id
        decide = self.store.approve if decision is Decision.APPROVED else self.store.decline
        decide(plan_id, self._actor, reason)
        return _document(documents.plan_decided(plan_id, decision))

    def retry(self, plan: str) -> Document:
        plan_id = self.store.plan(plan).plan_id
        self.store.retry(plan_id, actor=self._actor)
        return documents.plan_retried(plan_id)

    def bulk(self, action: "Action", terms: "PlanTerms", *, reason: str, dry_run: bool, after: str | None) -> Document:
        from service.planning import bulk

        meant = self._meant(terms)
        if dry_run:
            return bulk.would(self.store, action, meant, after)
        return bulk.act(self.store, action, meant, actor=self._actor, reason=reason, after=after)

    def pause(self, table: str | None, reason: str) -> Document:
        name = None if table is None else self._registered(table)
        self.store.pause(name, self._actor, reason)
        return documents.paused(name, True)

    def halts(self, table: str) -> Document:
        state = self.store.table_state(self._registered(table))
        partitions = documents.halted_partitions(state)
        return _document({"halted_reason": state.halted_reason, "halted_partitions": partitions})

    def resume(self, table: str | None) -> Document:
        name = None if table is None else self._registered(table)
        self.store.resume(name, self._actor)
        return documents.paused(name, False)

    def notifications(self, *, state: str | None, limit: int, after: int | None) -> list[Document]:
        from service.store import NotificationState

        found = self.store.notifications(NotificationState(state) if state else None, limit, after)
        return _documents(documents.notification(message) for message in found)

    def retry_notifications(self, numbers: Collection[int] | None) -> Document:
        return documents.notifications_retried(self.store.retry_notifications(numbers, actor=self._actor))

    def drop_notifications(self, numbers: Collection[int] | None) -> Document:
        return documents.notifications_dropped(self.store.drop_notifications(numbers, actor=self._actor))

    def audit(
        self, *, table: str | None, actor: str | None, action: str | None, limit: int, after: int | None
    ) -> list[Document]:
        found = self.store.audit(table=table, actor=actor, action=action, limit=limit, after=after)
        return _documents(documents.audit_entry(entry) for entry in found)

    def simulate(self, scenario: Mapping[str, Any]) -> Document:
        return _document(documents.simulation(scenario))

    def close(self) -> None:
        if "store" in self.__dict__:
            self.store.close()

    def _meant(self, terms: "PlanTerms") -> "PlanTerms":
        table = terms.get("table")
        return terms if table is None else {**terms, "table": self._name(table)}

    def _name(self, word: str) -> str:
        """The name of a table a person means, one that only the database knows included."""
        return word if word in self._known() else self.catalog.find(word).name

    def _registered(self, word: str) -> str:
        """The name of a table, registered where the database has not seen it yet."""
        if word in self._known():
            return word
        found = self.catalog.find(word)
        self.store.register(found.ref, found.mode, found.owner)
        return found.name

    def _known(self) -> set[str]:
        return {state.name for state in self.store.tables()}


def _document(values: Mapping[str, Any]) -> Document:
    return dict(plain(values))


def _documents(found: Any) -> list[Document]:
    return [_document(values) for values in found]


def _is_meant(table: "ConfiguredTable", terms: "TableTerms") -> bool:
    """Whether ``terms`` mean a table that the database does not know."""
    from service.store.table_list import database_of

    known = {
        "state": table.mode,
        "mode": table.mode,
        "format": table.ref.format,
        "owner": table.owner,
        "database": database_of(table.name),
        "name": table.name,
    }
    part = (terms.get("name") or "").lower()
    return part in table.name.lower() and all(
        known[key] == value for key, value in terms.items() if value is not None and key != "name"
    )
