# SPDX-License-Identifier: Apache-2.0
"""Compares this host's clock with that of the table's storage before anything is committed.

Iceberg (``TableMetadata``) refuses a commit whose time is more than a minute before that of the last commit. After one
commit by a clock that is further ahead, all writers fail until their clocks have caught up. An expiry by such a clock
would remove snapshots that the retention and the table still keep.
"""

import os
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from lake.errors import Transient
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.storage.locations import canonical_location

MAX_SKEW = timedelta(seconds=30)
"""The largest allowed difference, half of what Iceberg allows between two writers."""

_NANOSECONDS = 1_000_000_000


def require_storage_clock(table: LoadedTable, doing: str) -> int:
    """Return the present time by the earlier one of this host's and the storage's clock, in ms since 1970.

    Raises Transient if the two clocks differ by more than ``MAX_SKEW``.

    The storage's time is the modification time of a file just written beside the table's metadata.
    """
    directory = os.path.dirname(canonical_location(table.metadata_location))
    path = os.path.join(directory, f".lakefold-clock-{uuid.uuid4()}")
    before = _now_ns()
    try:
        with open(path, "xb") as file:
            written = os.fstat(file.fileno()).st_mtime_ns
    except OSError as error:
        raise Transient(f"{table.ref.name}: {doing} waits: {path} can't be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            os.remove(path)
    after = _now_ns()
    skew = round(MAX_SKEW.total_seconds() * _NANOSECONDS)
    # The process may be paused between these calls; storages may have times of whole seconds.
    if before - skew <= written + _NANOSECONDS and written <= after + skew:
        return min(before, written) // 1_000_000
    here = before if before > written else after
    raise Transient(
        f"{table.ref.name}: {doing} waits: the clock of this host says {_format(here)}, the storage's "
        f"{_format(written)} (a file just written). Synchronize the clocks, since Iceberg's writers refuse to commit "
        f"after a commit from the future; a difference of {MAX_SKEW.seconds} s is allowed"
    )


def _now_ns() -> int:
    return time.time_ns()


def _format(nanoseconds: int) -> str:
    return f"{datetime.fromtimestamp(nanoseconds / _NANOSECONDS, UTC):%Y-%m-%d %H:%M:%S} UTC"
