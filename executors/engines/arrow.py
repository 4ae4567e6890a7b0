# SPDX-License-Identifier: Apache-2.0
"""The engine ``arrow``: Parquet files decoded and encoded by pyarrow, several times as fast as Spark SQL."""

import pyarrow as pa

from executors.engines.backends import RewriteBackend
from executors.engines.concat import rewrite_task, row_group_rows
from executors.engines.inputs import UnsupportedInput, adapt_inputs, common_layout, read_footers
from executors.engines.outputs import ParquetWriteSettings
from executors.engines.task_engine import TaskEngine
from lake.engines import RewriteTask
from lake.plan import RewriteOptions


class ArrowEngine(TaskEngine):
    """Rewrites groups of Parquet files with one schema and equal metadata, and keeps the order of rows.

    ``backend`` runs the work.
    """

    name = "arrow"

    def __init__(self, backend: RewriteBackend) -> None:
        super().__init__(backend, rewrite_task)

    def unsupported_reason(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        """See ``lake.engines.RewriteEngine``. Reads the footers of all inputs that can be read."""
        if options.sort_columns:
            return f"it can't sort by {', '.join(options.sort_columns)}; unset sort_columns"
        try:
            found = adapt_inputs(read_footers(task.inputs), task.additions)
            if found:
                ParquetWriteSettings(
                    common_layout(found), options.compression, row_group_rows(found, len(task.outputs))
                )
        except UnsupportedInput as error:
            return str(error)
        except (OSError, pa.ArrowException):
            return None
        return None
