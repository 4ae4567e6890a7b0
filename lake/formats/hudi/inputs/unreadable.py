# SPDX-License-Identifier: Apache-2.0
"""The unreadable inputs of a failed rewrite: missing, truncated or damaged files."""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from lake.formats.hudi.files.names import slice_paths
from lake.formats.hudi.files.storage import TableStorage
from lake.plan import Plan, SkippedGroup

#: errors of readers of a damaged Parquet file; other failures are no reason to read all inputs again
_DAMAGE = re.compile(r"parquet|corrupt|malformed|EOFException|BufferUnderflow|decompress|snappy|zstd", re.IGNORECASE)


def _footer_fault(storage: TableStorage, path: str) -> str | None:
    try:
        with storage.open(path) as source:
            pq.ParquetFile(source)
    except FileNotFoundError:
        return "is gone from storage"
    except (pa.ArrowException, OSError) as error:
        return f"can't be read ({str(error).splitlines()[0][:160]})"
    return None


def _content_fault(storage: TableStorage, path: str) -> str | None:
    try:
        with storage.open(path) as source:
            for _ in pq.ParquetFile(source, page_checksum_verification=True).iter_batches(batch_size=8192):
                pass
    except FileNotFoundError:
        return "is gone from storage"
    except (pa.ArrowException, OSError) as error:
        return f"can't be read ({str(error).splitlines()[0][:160]})"
    return None


def find_unreadable_groups(
    storage: TableStorage, plan: Plan, groups: Sequence[int], error_text: str
) -> tuple[SkippedGroup, ...]:
    """Return the groups among ``groups`` with a missing or unreadable input, each with the reason.

    ``error_text`` is the error of the failed rewrite. If all files exist with sound footers, the base files that the
    error names are read in full. If it names none but mentions damage, all base files are read. A damaged file is
    quarantined, a missing file is not.
    """
    faults: dict[str, str] = {}
    bases = {s.path for g in groups for s in plan.groups[g].slices if s.path}
    everything = {path for g in groups for s in plan.groups[g].slices for path in slice_paths(s)}
    for path in sorted(everything):
        if not storage.is_file(path):
            faults[path] = "is gone from storage"
        elif path in bases and (fault := _footer_fault(storage, path)):
            faults[path] = fault
    if not faults:
        named = {path for path in bases if path.rsplit("/", 1)[-1] in error_text}
        for path in sorted(named or (bases if _DAMAGE.search(error_text) else ())):
            if fault := _content_fault(storage, path):
                faults[path] = fault
    left_out = []
    for index in groups:
        own = [path for s in plan.groups[index].slices for path in slice_paths(s) if path in faults]
        if own:
            left_out.append(
                SkippedGroup(
                    group=index,
                    reason="; ".join(f"{path} {faults[path]}" for path in own),
                    quarantine=tuple(path for path in own if not faults[path].startswith("is gone")),
                )
            )
    return tuple(left_out)
