# SPDX-License-Identifier: Apache-2.0
"""The client that calls a running lakefold over its HTTP API."""

import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from service import problems
from service.cli.client import Document, SettingList, TableList
from service.cli.client.connection import ApiConnection
from service.cli.client.plan_progress import follow_progress
from service.problems import ProblemError
from service.text import to_jsonable

if TYPE_CHECKING:
    from lake.plan import ProposalDecision
    from service.control.planning.bulk_actions import BulkActionName
    from service.control.planning.plan_request import PlanRequest
    from service.control.store import PlanFilter, TableFilter

_PAGE_SIZE = 1000
#: the service delays its response for at most this time to wait for the scheduler's answer; then the client polls
_WAIT_SECONDS = 25.0
_ANSWER_POLL_SECONDS = 0.5
#: unless the explanation is cached, the service first lists the whole table
_EXPLAIN_SECONDS = 300.0
#: the service first reads the table's whole history
_REPLAY_SECONDS = 300.0
#: one call handles up to a thousand plans, one after the other
_BULK_SECONDS = 300.0


class RemoteClient:
    """The implementation of ``service.cli.client.Client`` over a running lakefold's HTTP API."""

    def __init__(self, http: ApiConnection) -> None:
        self._http = http

    def status(self) -> Document:
        return self._document("/v1/status")

    def tables(self, table_filter: "TableFilter", sort: str, limit: int | None) -> TableList:
        found: list[Document] = []
        for page in self._pages("/v1/tables", sort=sort, limit=min(limit or _PAGE_SIZE, _PAGE_SIZE), **table_filter):
            found += page["items"]
            if limit is not None and len(found) >= limit:
                break
        return TableList(tables=found[:limit], problems=())

    def databases(self, table_filter: "TableFilter") -> list[Document]:
        return list(self._document("/v1/databases", **table_filter)["items"])

    def report(self, by: str, table_filter: "TableFilter") -> list[Document]:
        return list(self._document("/v1/report", by=by, **table_filter)["items"])

    def table(self, table: str) -> Document:
        if "/" not in table:
            try:
                return self._document(f"/v1/tables/{quote(table, safe='')}")
            except ProblemError as error:
                if error.problem is not problems.NOT_FOUND:
                    raise
        return self._document(f"/v1/tables/{quote(self._find_table_name(table), safe='')}")

    def explain(self, table: str, partition: str | None, *, files: bool) -> Document:
        name = self.table(table)["table"]
        document: Document = self._http.call(
            "GET",
            f"/v1/tables/{quote(name, safe='')}/explain",
            parameters={"partition": partition, "files": "true" if files else None},
            repeatable=True,
            timeout_seconds=_EXPLAIN_SECONDS,
        )
        return document

    def history(self, table: str, *, limit: int, after: str | None, files: int) -> Document:
        return self._get_history(table, "history", limit=limit, after=after, files=files)

    def replay(self, table: str, days: float, settings: Sequence[str]) -> Document:
        return self._get_history(table, "replay", days=days, set=list(settings))

    def advice(self, table: str, days: float) -> Document:
        return self._get_history(table, "advice", days=days)

    def settings(self, table: str | None) -> SettingList:
        if table is None:
            return SettingList(settings=self._document("/v1/settings")["items"])
        found = self.table(table)
        document = self._document("/v1/settings", table=found["table"])
        return SettingList(settings=document["items"], table=found["table"], location=found["location"])

    def plans(self, plan_filter: "PlanFilter", *, limit: int, after: str | None) -> list[Document]:
        return self._items("/v1/plans", limit, **self._query_parameters(plan_filter), after=after)

    def plan(self, plan: str) -> Document:
        return self._document(f"/v1/plans/{quote(plan, safe='')}")

    def watch(self, plan: str) -> Iterator[Document]:
        return follow_progress(self._http, self.plan(plan)["plan_id"])

    def request(
        self,
        table: str,
        wanted: "PlanRequest",
        *,
        timeout_seconds: float,
    ) -> Document:
        deadline = time.monotonic() + timeout_seconds
        body: dict[str, Any] = {"table": self.table(table)["table"], "overrides": dict(wanted.overrides)}
        body |= {} if wanted.partitions is None else {"partitions": sorted(wanted.partitions)}
        body |= {} if wanted.kind is None else {"kind": wanted.kind.value}
        document: Document = self._http.call(
            "POST",
            "/v1/requests",
            parameters={"dry_run": "true" if wanted.dry_run else None, "wait": min(_WAIT_SECONDS, timeout_seconds)},
            body=body,
            # The key makes repetitions of this call one request.
            headers={"Idempotency-Key": wanted.idempotency_key or str(uuid.uuid4())},
            repeatable=True,
        )
        while document["answer"] is None:
            if time.monotonic() > deadline:
                raise ProblemError(
                    problems.TRANSIENT,
                    f"the scheduler has not answered request {document['request_id']} in {timeout_seconds:.0f} s; the "
                    "request stays open; raise --timeout to wait longer",
                    request_id=document["request_id"],
                )
            time.sleep(_ANSWER_POLL_SECONDS)
            document = self._document(f"/v1/requests/{document['request_id']}")
        return dict(document["answer"])

    def cancel(self, plan: str, reason: str) -> Document:
        return self._post(f"/v1/plans/{self.plan(plan)['plan_id']}/cancel", {"reason": reason})

    def decide(self, plan: str, decision: "ProposalDecision", reason: str) -> Document:
        what = "approve" if decision == "approved" else "decline"
        return self._post(f"/v1/plans/{self.plan(plan)['plan_id']}/{what}", {"reason": reason})

    def retry(self, plan: str) -> Document:
        return self._post(f"/v1/plans/{self.plan(plan)['plan_id']}/retry")

    def bulk(
        self, action: "BulkActionName", plan_filter: "PlanFilter", *, reason: str, dry_run: bool, after: str | None
    ) -> Document:
        document: Document = self._http.call(
            "POST",
            f"/v1/plans/{action}",
            body={**self._query_parameters(plan_filter), "reason": reason, "dry_run": dry_run, "after": after},
            # The key makes repetitions of this call one action.
            headers={"Idempotency-Key": str(uuid.uuid4())},
            repeatable=True,
            timeout_seconds=_BULK_SECONDS,
        )
        return document

    def pause(self, table: str | None, reason: str) -> Document:
        return self._post(f"{self._resource_path(table)}/pause", {"reason": reason})

    def halts(self, table: str) -> Document:
        found = self.table(table)
        return {name: found[name] for name in ("halted_reason", "halted_partitions")}

    def resume(self, table: str | None) -> Document:
        return self._post(f"{self._resource_path(table)}/resume")

    def notifications(self, *, state: str | None, limit: int, after: int | None) -> list[Document]:
        return self._items("/v1/notifications", limit, state=state, after=after)

    def retry_notifications(self, numbers: Collection[int] | None) -> Document:
        return self._post("/v1/notifications/retry", _numbers_body(numbers))

    def drop_notifications(self, numbers: Collection[int] | None) -> Document:
        return self._post("/v1/notifications/drop", _numbers_body(numbers))

    def audit(
        self, *, table: str | None, actor: str | None, action: str | None, limit: int, after: int | None
    ) -> list[Document]:
        return self._items("/v1/audit", limit, table=table, actor=actor, action=action, after=after)

    def simulate(self, scenario: Mapping[str, Any]) -> Document:
        return dict(self._http.call("POST", "/v1/simulate", body=scenario, repeatable=True))

    def close(self) -> None:
        self._http.close()

    def _get_history(self, table: str, resource: str, **parameters: Any) -> Document:
        history_path = f"{self._resource_path(table)}/{resource}"
        found = self._http.call(
            "GET", history_path, parameters=parameters, repeatable=True, timeout_seconds=_REPLAY_SECONDS
        )
        return dict(found)

    def _query_parameters(self, plan_filter: "PlanFilter") -> Document:
        """Return ``plan_filter`` as the query parameters of the API."""
        query = {"error" if key == "error_class" else key: value for key, value in to_jsonable(plan_filter).items()}
        return query | ({"table": self.table(query["table"])["table"]} if "table" in query else {})

    def _resource_path(self, table: str | None) -> str:
        return "/v1" if table is None else f"/v1/tables/{quote(self.table(table)['table'], safe='')}"

    def _document(self, path: str, **parameters: Any) -> Document:
        return dict(self._http.get(path, **parameters))

    def _post(self, path: str, body: Mapping[str, Any] | None = None) -> Document:
        return dict(self._http.call("POST", path, body=body))

    def _items(self, path: str, limit: int, **parameters: Any) -> list[Document]:
        """Return the first ``limit`` items of a list."""
        found: list[Document] = []
        for page in self._pages(path, limit=min(limit, _PAGE_SIZE), **parameters):
            found += page["items"]
            if len(found) >= limit:
                break
        return found[:limit]

    def _pages(self, path: str, *, after: str | int | None = None, **parameters: Any) -> Iterator[Document]:
        while True:
            page = self._document(path, after=after, **parameters)
            yield page
            after = page["next"]
            if after is None:
                return

    def _find_table_name(self, word: str) -> str:
        """Find the table with this location or unique name ending in the service's list, and return its name.

        Raises ProblemError if there is no such table.
        """
        from service.control.config.catalog import unique_suffix_match
        from service.text import did_you_mean

        locations: dict[str, str] = {
            table["table"]: table["location"] for table in self.tables({}, "name", None).tables
        }
        for name, location in locations.items():
            if word.rstrip("/") == location:
                return name
        found = unique_suffix_match(word, locations)
        if found is None:
            hint = (
                did_you_mean(word, list(locations)) or f"; lakefold tables list shows the {len(locations)} known tables"
            )
            raise ProblemError(problems.NOT_FOUND, f"no table {word!r}{hint}", table=word)
        return found


def _numbers_body(numbers: Collection[int] | None) -> Document:
    return {} if numbers is None else {"numbers": sorted(numbers)}
