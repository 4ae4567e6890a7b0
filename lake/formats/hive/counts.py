# SPDX-License-Identifier: Apache-2.0
"""How many rows data files have, by their footers."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from lake.errors import Rejected
from lake.filesystems import filesystem_of
from lake.formats.hive.refusals import FileKind

_FOOTERS_AT_ONCE = 8


def rows_of(paths: Sequence[str], kind: FileKind) -> int:
    """The rows of all files together; a file without a byte has none. Raises Rejected for one that can't be read."""

    def count(path: str) -> int:
        try:
            filesystem, place = filesystem_of(path)
            with filesystem.open_input_file(place) as file:
                return int(orc.ORCFile(file).nrows if kind is FileKind.ORC else pq.read_metadata(file).num_rows)
        except (pa.ArrowException, OSError) as error:
            raise Rejected(f"{path} can't be read as {kind}: {error}; put it back from a backup") from error

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        return sum(pool.map(count, paths))
