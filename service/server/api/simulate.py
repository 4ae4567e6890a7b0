# SPDX-License-Identifier: Apache-2.0
"""The route ``/v1/simulate``: which files a writer will make. It reads no table and stores nothing."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from planner.writers.model import Operation
from planner.writers.simulation import WriterKind
from service.control import serializers
from service.server.api.request_types import PartitionPath, Partitions, RequestBody
from service.server.api.requests import Setting, SettingName
from service.server.api.responses import json_response

router = APIRouter(prefix="/simulate", tags=["simulate"])

#: maximum body bytes by path; smaller than for writes, because the read scope suffices here
MAX_BODY_BYTES = {"/v1/simulate": 256 << 10}
#: files of all steps together in one answer
_MAX_FILES = 50_000
#: a number, or with a unit: 96MB
Size = Annotated[int | str, Field(examples=["96MB", 125829120])]
Count = Annotated[int, Field(ge=0, le=10**15)]
_MAX_BATCHES = 10_000


class RowAmount(RequestBody):
    """The rows of one partition, or of each of several: two of `rows`, `bytes` and `row_bytes` give the amount."""

    partition: PartitionPath | None = None
    partitions: Partitions | None = None
    rows: Count | None = None
    bytes: Size | None = None
    row_bytes: float | None = None


class BatchWrite(RowAmount):
    """An operation of a batch on some rows."""

    operation: Operation


class BatchBody(RowAmount):
    """Writes that are committed together: a single write, or the list `writes`."""

    operation: Operation | None = None
    writes: Annotated[list[BatchWrite], Field(max_length=_MAX_BATCHES)] | None = None
    tasks: Annotated[int, Field(ge=1, le=10**9)] | None = None
    repeat: Annotated[int, Field(ge=1, le=_MAX_BATCHES)] | None = None


class ScenarioBody(RequestBody):
    """A writer with its settings under their own names, the existing files, and the batches."""

    writer: WriterKind
    row_bytes: float | None = None
    settings: Annotated[dict[SettingName, Setting], Field(default_factory=dict, max_length=100)]
    files: Annotated[list[RowAmount], Field(default_factory=list, max_length=_MAX_BATCHES)]
    batches: Annotated[list[BatchBody], Field(min_length=1, max_length=_MAX_BATCHES)]


@router.post("")
def simulate(scenario: ScenarioBody) -> Response:
    """The files after each batch by the rules of the writer; docs/planning.md explains each rule.

    422 if the scenario can't be simulated, or if it would make more than 50,000 files over all batches.
    """
    return json_response(
        serializers.simulation(scenario.model_dump(mode="json", exclude_none=True), most_files=_MAX_FILES)
    )
