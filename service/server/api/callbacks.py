# SPDX-License-Identifier: Apache-2.0
"""The routes ``/v1/events/FORMAT``: the HTTP commit callback of a format's writers, which has its own key."""

import hmac
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader
from pydantic import BaseModel, Field, ValidationError, create_model
from starlette.responses import Response

from lake.capabilities import CommitCallback, ReportsCommits
from lake.formats import load_formats
from service import problems
from service.server.api.context import Context, ContextDep
from service.server.api.events import report_written
from service.server.api.problems import HttpProblemError
from service.server.api.request_types import MOST_PARTITIONS, PartitionPath, TableName
from service.server.api.security import Caller
from service.server.api.table_lookup import find_table_at

router = APIRouter(prefix="/events", tags=["events"])

_CALLBACKS = {one.name: one.commit_callback for one in load_formats() if isinstance(one, ReportsCommits)}
#: the keys in the OpenAPI document
SECURITY_SCHEMES = {
    name: {"type": "apiKey", "in": "header", "name": callback.key_header} for name, callback in _CALLBACKS.items()
}
#: a callback lists every file of a commit; the handler checks the key before it reads the body
MAX_BODY_BYTES = {f"/v1/events/{name}": 64 << 20 for name in _CALLBACKS}


def _add_route(name: str, callback: CommitCallback) -> None:
    title, setting, model = name.capitalize(), f"{name}_callback_key", _body_model(callback)
    key_header = APIKeyHeader(
        name=callback.key_header, scheme_name=name, auto_error=False, description=f"[http] {setting}"
    )

    def check_key(context: ContextDep, key: Annotated[str | None, Depends(key_header)]) -> Caller:
        expected = getattr(context.config.http, setting)
        if expected is None:
            raise HttpProblemError(problems.UNAUTHENTICATED, f"{title}'s callback is off; set [http] {setting}")
        if not hmac.compare_digest((key or "").encode(), expected.get_secret_value().encode()):
            why = f"the key in the header {callback.key_header} is missing or wrong"
            raise HttpProblemError(problems.UNAUTHENTICATED, why)
        return Caller(f"{title}'s commit callback", "write")

    schema = _body_schema(callback)

    @router.post(
        f"/{name}",
        name=f"{name}_written",
        description=f"{title}'s own HTTP commit callback: the partitions of this commit are scanned now.",
        status_code=202,
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
    )
    async def report(context: ContextDep, request: Request, caller: Annotated[Caller, Depends(check_key)]) -> Response:
        # The body is read here and not as a parameter, so that the key is checked first.
        body = await request.body()
        return await to_thread.run_sync(_report_commit, context, model, body, caller)


def _body_model(callback: CommitCallback) -> type[BaseModel]:
    """Return the model of a callback's body, with the fields instant, location and files."""
    file = create_model("WrittenFile", partition=(Annotated[PartitionPath, Field(alias=callback.partition_field)], ""))
    return create_model(
        "ReportedCommit",
        instant=(Annotated[str, Field(alias=callback.instant_field, max_length=64)], ...),
        location=(Annotated[TableName, Field(alias=callback.location_field)], ...),
        files=(Annotated[list[file] | None, Field(alias=callback.files_field)], None),  # type: ignore[arg-type, valid-type]
    )


def _body_schema(callback: CommitCallback) -> dict[str, Any]:
    """Return the fields of a callback that are read, for the OpenAPI document."""
    text = {"type": "string"}
    file = {"type": "object", "properties": {callback.partition_field: text}}
    return {
        "type": "object",
        "required": [callback.instant_field, callback.location_field],
        "properties": {
            callback.instant_field: text,
            callback.location_field: text,
            callback.files_field: {"type": "array", "items": file},
        },
    }


def _report_commit(context: Context, model: type[BaseModel], body: bytes, caller: Caller) -> Response:
    try:
        commit: Any = model.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError([{**e, "loc": ("body", *e["loc"])} for e in error.errors()]) from error
    partitions = None if commit.files is None else sorted({file.partition for file in commit.files})
    if partitions is not None and len(partitions) > MOST_PARTITIONS:
        partitions = None  # the whole table
    return report_written(context, find_table_at(context, commit.location), partitions, caller, instant=commit.instant)


for _name, _callback in _CALLBACKS.items():
    _add_route(_name, _callback)
