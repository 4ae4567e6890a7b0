# SPDX-License-Identifier: Apache-2.0
"""The page of one request for plans and its answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.control.planning.plan_request import PlanResponse
from service.control.store import Request
from service.server.web.formatting import shell_command
from service.server.web.request_form import overrides_as_text, request_form_path


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPage:
    """A request, and its result once ``request.answer`` exists. ``has_scheduler`` is True if a scheduler runs.

    ``refused`` is the reason why the plans of a dry run can't be stored. ``form_url`` is the address of the filled-in
    form. The form takes one partition, so ``form_url`` is '' for a request with several.
    """

    request: Request
    has_scheduler: bool
    is_refused: bool
    text: str
    refused: str
    plan_ids: tuple[str, ...]
    plans: tuple[Mapping[str, Any], ...]
    reasons: tuple[Mapping[str, Any], ...]
    holders: tuple[tuple[str, str], ...]
    overrides: Mapping[str, str]
    form_url: str
    command: str


def request_page(request: Request, *, has_scheduler: bool) -> RequestPage:
    """Return the page of a request."""
    answer = PlanResponse.from_document(request.answer) if request.answer is not None else None
    words = ["lakefold", "plans", "request", request.table]
    for name in request.partitions or ():
        words += ["--partition", name]
    words += ["--kind", request.kind.value] if request.kind else []
    overrides = overrides_as_text(request.overrides)
    for key, value in overrides.items():
        words += ["--set", f"{key}={value}"]
    return RequestPage(
        request=request,
        has_scheduler=has_scheduler,
        is_refused=answer is not None and answer.problem is not None,
        text=answer.text if answer else "",
        refused=answer.refused if answer else "",
        plan_ids=answer.plan_ids if answer else (),
        plans=answer.plans if answer else (),
        reasons=answer.reasons if answer else (),
        holders=tuple(answer.holders.items()) if answer else (),
        overrides=overrides,
        form_url=request_form_path(
            request.table, (request.partitions or ("",))[0], request.kind or "", overrides.items()
        )
        if len(request.partitions or ()) <= 1
        else "",
        command=shell_command(*words, *(["--dry-run"] if request.dry_run else [])),
    )
