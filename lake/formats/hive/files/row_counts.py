# SPDX-License-Identifier: Apache-2.0
"""The number of rows in data files, by their footers."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from lake.errors import Rejected
from lake.formats.hive.catalog.refusals import FileFormat
from lake.storage.filesystems import filesystem_of

_MAX_CONCURRENT_FOOTERS = 8


def count_rows(paths: Sequence[str], file_format: FileFormat) -> int:
    """Return the rows of all files together. Raises Rejected if a file can't be read."""

    def count(path: str) -> int:
        try:
            filesystem, fs_path = filesystem_of(path)
            with filesystem.open_input_file(fs_path) as file:
                return int(
                    orc.ORCFile(file).nrows if file_format is FileFormat.ORC else pq.read_metadata(file).num_rows
                )
        except (pa.ArrowException, OSError) as error:
            raise Rejected(f"{path} can't be read as {file_format}: {error}; put it back from a backup") from error

    with ThreadPoolExecutor(_MAX_CONCURRENT_FOOTERS) as pool:
        return sum(pool.map(count, paths))
