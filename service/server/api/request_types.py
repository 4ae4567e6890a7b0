# SPDX-License-Identifier: Apache-2.0
"""The common types of request bodies."""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from service.text import parse_time_or_age

#: a longer list is refused; a request without a list means the whole table
MOST_PARTITIONS = 10_000
#: the largest row number that both databases can compare
MAX_ROW_NUMBER = 2**63 - 1


def _check_relative_path(path: str) -> str:
    if {".", ".."} & set(path.split("/")):
        raise ValueError("a partition is a path inside its table, without . and ..")
    return path


def _parse_time(value: Any) -> datetime | None:
    """Parse a time or an age; an empty field of a form is None."""
    return parse_time_or_age(str(value), datetime.now(UTC)) if str(value).strip() else None


class RequestBody(BaseModel):
    """A JSON object without unknown members."""

    model_config = ConfigDict(extra="forbid")


#: a date, a time or an age
TimeOrAge = Annotated[
    datetime | None, BeforeValidator(_parse_time), WithJsonSchema({"type": "string", "examples": ["2026-03-01", "2d"]})
]
RowNumber = Annotated[int, Field(ge=1, le=MAX_ROW_NUMBER)]
Reason = Annotated[str, Field(max_length=1000)]
TableName = Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*$")]
#: a partition's path, such as ``dt=2026-03-01/hour=7``; empty for the only partition of an unpartitioned table
PartitionPath = Annotated[
    str, StringConstraints(max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*$"), AfterValidator(_check_relative_path)
]
Partitions = Annotated[list[PartitionPath], Field(min_length=1, max_length=MOST_PARTITIONS)]
