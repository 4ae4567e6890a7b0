# SPDX-License-Identifier: Apache-2.0
"""A request for plans and its response: the same types for a command, a program over HTTP and the page."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from lake.errors import one_line
from lake.plan import Plan, PlanKind
from service import problems
from service.former_names import both_names
from service.problems import Problem, ProblemError
from service.text import to_jsonable


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A request for plans of one table, or with ``dry_run`` for a preview of them.

    ``partitions`` and ``kind`` are None for all; ``overrides`` are policy settings for this request alone. A second
    request with the same ``idempotency_key`` returns the first request.
    """

    partitions: Collection[str] | None = None
    kind: PlanKind | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    idempotency_key: str | None = None


_PROBLEMS_BY_SLUG: Mapping[str, Problem] = {problem.slug: problem for problem in problems.PROBLEMS}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResponse:
    """The result of scanning and planning a table, the same for scheduled scans, requests and dry runs.

    ``outcome`` is 'planned', 'dry_run', 'nothing', 'observed' (a scan that may not plan) or 'problem', which has the
    kind of error in ``problem``. ``plans`` has each plan with its groups, ``reasons`` has the slices left alone with
    the reason, and ``holders`` has the live plan that holds each requested partition. ``refused`` is the reason why the
    plans of a dry run would not be stored; '' if they would be.
    """

    table: str
    outcome: str
    text: str
    plan_ids: tuple[str, ...] = ()
    plans: tuple[Mapping[str, Any], ...] = ()
    reasons: tuple[Mapping[str, Any], ...] = ()
    holders: Mapping[str, str] = field(default_factory=dict)
    instant: str = ""
    taken_at: datetime | None = None
    files: int = 0
    bytes: int = 0
    problem: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""

    def document(self) -> dict[str, Any]:
        """Return the response as JSON; ``from_document`` reads it back."""
        return dict(to_jsonable(asdict(self)))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "PlanResponse":
        """Return the response that ``document`` was made from."""
        values = {**document, **{key: tuple(document[key]) for key in ("plan_ids", "plans")}}
        values["reasons"] = tuple(both_names("decision", reason) for reason in document["reasons"])
        taken = document["taken_at"]
        return cls(**{**values, "taken_at": datetime.fromisoformat(taken) if taken else None})

    @classmethod
    def from_error(cls, table: str, error: Exception) -> "PlanResponse":
        """Return the response to a request that could not be served."""
        return cls(
            table=table,
            outcome="problem",
            text=one_line(error),
            problem=problems.classify(error).slug,
            facts=dict(to_jsonable(getattr(error, "facts", {}))),
        )

    def raise_problem(self) -> None:
        """Raise the error of a response whose outcome is a problem."""
        if self.problem is not None:
            raise ProblemError(_PROBLEMS_BY_SLUG.get(self.problem, problems.ERROR), self.text, **self.facts)


def plan_document(plan: Plan, estimate: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan with every group and file, as dry runs print it."""
    return {
        "plan_id": plan.plan_id,
        "kind": plan.kind.value,
        "adopted": plan.adopted_instant,
        "input_files": plan.input_files,
        "input_bytes": plan.bytes,
        "output_files": sum(group.output_files for group in plan.groups),
        "log_files": sum(len(s.log_files) for group in plan.groups for s in group.slices),
        "estimate": dict(to_jsonable(estimate)),
        "groups": [
            {
                "partition": group.partition,
                "input_files": sum(1 for s in group.slices if s.path is not None),
                "input_bytes": group.bytes,
                "output_files": group.output_files,
                "files": [
                    {"path": s.path, "file_id": s.file_id, "bytes": s.bytes, "log_files": list(s.log_files)}
                    for s in group.slices
                ],
            }
            for group in plan.groups
        ],
    }
