# SPDX-License-Identifier: Apache-2.0
"""The engine ``arrow``: Parquet files decoded and encoded by pyarrow, several times as fast as Spark SQL."""

from typing import Literal

import pyarrow as pa

from executors.engines.backends import RewriteBackend
from executors.engines.group_rewrite import require_filterable, rewrite_task, row_group_rows, write_settings
from executors.engines.inputs import UnsupportedInput, adapt_inputs, common_layout, read_footers, unify_schemas
from executors.engines.layout.sorting import sort_column_names
from executors.engines.row_columns import with_row_columns, without_row_columns
from executors.engines.task_engine import TaskEngine
from lake.engines import RewriteTask
from lake.plan import RewriteOptions


class ArrowEngine(TaskEngine):
    """Rewrites groups of Parquet files with one schema and equal metadata.

    The rows keep their order, or are sorted by the columns that the options name. Rows that the task omits are left
    out, and the columns that it adds to each row are stored. ``backend`` runs the work.
    """

    name = "arrow"
    omits_rows: Literal[True] = True
    adds_row_columns: Literal[True] = True

    def __init__(self, backend: RewriteBackend) -> None:
        super().__init__(backend, rewrite_task, _obstacle)


def _obstacle(options: RewriteOptions, task: RewriteTask) -> str | None:
    try:
        found = without_row_columns(adapt_inputs(read_footers(task.inputs), task.additions), task.row_columns)
        found = unify_schemas(found, task.file_schema)
        if found:
            shape = common_layout(found, reads_dictionaries=not options.sort_columns)
            names = sort_column_names(shape, options.sort_columns)
            if task.omissions is not None:
                require_filterable(shape.schema)
            shape = with_row_columns(shape, task.row_columns)
            write_settings(shape, options, names, row_group_rows(found, len(task.outputs)))
    except UnsupportedInput as error:
        return str(error)
    except (OSError, pa.ArrowException):
        return None
    return None
