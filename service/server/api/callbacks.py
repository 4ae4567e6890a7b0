# SPDX-License-Identifier: Apache-2.0
"""The route ``/v1/events/hudi``: Hudi's HTTP commit callback, which authenticates with its own key."""

import hmac
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response

from service import problems
from service.server.api.context import Context, ContextDep
from service.server.api.events import report_written
from service.server.api.problems import HttpProblemError
from service.server.api.request_types import MOST_PARTITIONS, PartitionPath, TableName
from service.server.api.security import Caller
from service.server.api.table_lookup import find_table_at

router = APIRouter(prefix="/events", tags=["events"])

#: Hudi's header for the key (``hoodie.write.commit.callback.http.api.key``)
KEY_HEADER = "HUDI-CALLBACK-KEY"
_Key = Annotated[
    str | None,
    Depends(
        APIKeyHeader(name=KEY_HEADER, scheme_name="hudi", auto_error=False, description="[http] hudi_callback_key")
    ),
]
#: the fields of a callback that are read, for the OpenAPI document
_CALLBACK_SCHEMA = {
    "type": "object",
    "required": ["commitTime", "basePath"],
    "properties": {
        "commitTime": {"type": "string"},
        "basePath": {"type": "string"},
        "hoodieWriteStat": {
            "type": "array",
            "items": {"type": "object", "properties": {"partitionPath": {"type": "string"}}},
        },
    },
}
_HUDI_CALLER = Caller("Hudi's commit callback", "write")
#: the key in the OpenAPI document
SECURITY_SCHEMES = {"hudi": {"type": "apiKey", "in": "header", "name": KEY_HEADER}}
#: a callback lists every file of a commit; the handler checks the key before it reads the body
MAX_BODY_BYTES = {"/v1/events/hudi": 64 << 20}


class WriteStat(BaseModel):
    """One file that a Hudi commit wrote."""

    partition_path: Annotated[PartitionPath, Field(alias="partitionPath")] = ""


class HudiCommit(BaseModel):
    """A commit as Hudi's HTTP callback reports it. Older versions of Hudi list no files."""

    instant: Annotated[str, Field(alias="commitTime", max_length=64)]
    base_path: Annotated[TableName, Field(alias="basePath")]
    stats: Annotated[list[WriteStat] | None, Field(alias="hoodieWriteStat")] = None

    @property
    def partitions(self) -> list[str] | None:
        """The written partitions; None if the callback lists no files, or if there are too many partitions."""
        if self.stats is None:
            return None
        found = sorted({stat.partition_path for stat in self.stats})
        return found if len(found) <= MOST_PARTITIONS else None


def callback_key(context: ContextDep, key: _Key) -> Caller:
    """Check the key of ``[http] hudi_callback_key``, as a dependency. Raises ProblemError if it is wrong."""
    expected = context.config.http.hudi_callback_key
    if expected is None:
        raise HttpProblemError(problems.UNAUTHENTICATED, "Hudi's callback is off; set [http] hudi_callback_key")
    if not hmac.compare_digest((key or "").encode(), expected.get_secret_value().encode()):
        raise HttpProblemError(problems.UNAUTHENTICATED, f"the key in the header {KEY_HEADER} is missing or wrong")
    return _HUDI_CALLER


@router.post(
    "/hudi",
    status_code=202,
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _CALLBACK_SCHEMA}}}},
)
async def hudi_written(
    context: ContextDep, request: Request, caller: Annotated[Caller, Depends(callback_key)]
) -> Response:
    """Hudi's own HTTP commit callback: the partitions of this commit are scanned now."""
    # Read here and not as a parameter, so that the key is checked before a body is read.
    body = await request.body()
    return await to_thread.run_sync(_report_commit, context, body, caller)


def _report_commit(context: Context, body: bytes, caller: Caller) -> Response:
    try:
        commit = HudiCommit.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError([{**e, "loc": ("body", *e["loc"])} for e in error.errors()]) from error
    return report_written(
        context, find_table_at(context, commit.base_path), commit.partitions, caller, instant=commit.instant
    )
