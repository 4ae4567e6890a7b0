# SPDX-License-Identifier: Apache-2.0
"""Engines rewrite files that a format names. They are independent of tables, and formats are independent of engines.

The caller passes the engines to a format (``TableFormat.writer``), since engines are part of the executors. The format
determines the input and output files; ``lake.engine_choice`` chooses the engine of each group. Engines ignore deltas: a
row that a deletion vector or a log removes or changes would be in the output as it was. If deltas only delete rows, the
format can name these rows (``RowOmissions``). Other slices with deltas are rewritten by the format itself, or it makes
no task of them.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from lake.errors import Conflict, Rejected
from lake.model import TableRef
from lake.plan import AUTO, ClusteringGroup, Plan, RewriteOptions, RewriteProgress
from lake.storage.locations import resolve_path
from lake.units import MIB

if TYPE_CHECKING:
    import pyarrow as pa

BYTES_PER_SECOND: Mapping[str, int] = MappingProxyType(
    {AUTO: 25 * MIB, "stitch": 400 * MIB, "hybrid": 150 * MIB, "arrow": 100 * MIB, "spark": 25 * MIB}
)
"""The values of the setting ``engine``, with the bytes per second that one core rewrites.

``auto`` counts as the slowest engine that it may choose.
"""


class FileAddition(Protocol):
    """The additions of a format to one new Parquet file. Each attempt at a task creates its own."""

    @property
    def path(self) -> str:
        """The full path of the file."""

    def verify_wanted(self) -> None:
        """Raise Transient if the file is no longer wanted, such as after its plan's commit.

        An engine that decodes rows between the announcement of the file and its creation calls this before it creates
        the file.
        """

    def add(self, rows: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return ``rows`` as the file has them; called for all rows in their order.

        ``rows`` have all columns of the file, or at least the columns in ``FileAdditions``, in the file's order.
        Raises Rejected if a value can't be written.
        """

    def footer_entries(self) -> Mapping[str, str]:
        """Return the key-value metadata that the footer has besides that of the inputs, after the last rows."""


class FileAdditions(Protocol):
    """The additions of a format to the Parquet files that an engine writes for a task, and its omissions.

    Spark's tasks receive it with their ``RewriteTask``, so it can be pickled, and its module is sent to the executors.
    A file that would have no rows is not written.
    """

    @property
    def root_name(self) -> str:
        """The name of the schema's root, which has no meaning to readers and depends on an input's writer."""

    @property
    def removed_keys(self) -> frozenset[str]:
        """The key-value metadata that is true of one input only, or of its writer."""

    @property
    def shared_entries(self) -> Mapping[str, str]:
        """Key-value metadata of every file.

        An input that lacks a key gets the value of the first input that has the key, or the value here if no input has
        it.
        """

    @property
    def read_columns(self) -> Sequence[str]:
        """The top-level columns whose values ``FileAddition.add`` needs."""

    @property
    def replaced_columns(self) -> Sequence[str]:
        """The top-level columns of text that ``FileAddition.add`` replaces. It returns all others as they are."""

    def create_file(self, path: str) -> FileAddition:
        """Announce the file for ``path``, one of the task's ``outputs``, before the file exists.

        The file gets a path that no other attempt uses. Raises Transient if storage fails.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSchema:
    """The schema with which an engine writes the decoded rows of a task, if the Parquet inputs have other schemas.

    ``optional_ids`` are the field ids of the columns, at any level, that may be null in the table. An input may declare
    such a column as required if none of its rows has a null there. New files declare these columns as optional, and
    also the columns that are optional in an input. ``root_name`` is the name of the schema's root, and ``entries`` is
    the key-value metadata that describes the schema. The inputs' entries under these keys, and under ``removed_keys``,
    are ignored.
    """

    optional_ids: frozenset[int]
    root_name: str
    removed_keys: frozenset[str]
    entries: Mapping[str, str]


class RowOmissions(Protocol):
    """The rows of a task's inputs that the new files leave out, such as rows that are deleted.

    The format reads its deletes in whatever form it stores them, and an engine gets one bit for each row of an input.
    Spark's tasks receive the object with their ``RewriteTask``, so it can be pickled, and its module is sent to the
    executors. An output that would have no rows is not written.
    """

    def read_remaining(self, rows: Mapping[str, int]) -> "Mapping[str, pa.BooleanArray]":
        """Return the rows of each input that remain, as one value for each row in the order of the file.

        ``rows`` has the number of rows of each input, by the input's path. An input all of whose rows remain may be
        left out. Called once for each attempt at a task. Raises Conflict if the deletes are gone, Transient if they
        can't be read now.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumn:
    """A column of 64-bit integers that a format adds to each row of the new Parquet files, such as the id of the row.

    A row has the value that its input stores in the column with this ``name`` and ``field_id``. If the input has no
    such column, or the value is null, the row has the value in ``first_values`` for the path of its input. With
    ``adds_position`` this is the value of the input's first row, and each further row has the next number; deleted rows
    count too. New files declare the column as optional, although it has a value for each row. It is behind all other
    columns.
    """

    name: str
    field_id: int
    first_values: Mapping[str, int]
    adds_position: bool = False


NO_OMISSIONS = "it can't leave out deleted rows"
"""The reason for which an engine without ``OmitsRows`` does not rewrite a task with ``omissions``."""

NO_ROW_COLUMNS = "it can't store the columns that the table's format adds to each row"
"""The reason for which an engine without ``AddsRowColumns`` does not rewrite a task with ``row_columns``."""

NO_ADDITIONS = "it can't make the additions of the table's format to each file"
"""The reason for which an engine that ignores additions does not rewrite a task with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """One group of a plan as an engine sees it: full paths of its inputs and outputs, both in the order of the rows.

    The ``outputs`` do not exist yet. ``bytes`` is the size of the inputs. ``schema`` are the columns that data files of
    the table have, as Spark's JSON; None if the format does not have it. Partition columns are included if the files
    have them as well. If the table's readers match columns by field ids, the schema has the ids as ``parquet.field.id``
    in a field's metadata. An engine that matches by names compares them with the files' ids and writes them to new
    files. With ``additions`` each attempt writes to paths of its own instead of ``outputs``. With ``file_schema`` an
    engine that decodes rows accepts inputs with other schemas, see ``FileSchema``. An engine that copies row groups
    ignores ``file_schema``. With ``omissions`` some rows of the inputs are left out. Only an engine with ``OmitsRows``
    gets such a task. With ``row_columns`` new files have these columns, which inputs may lack. Only an engine with
    ``AddsRowColumns`` gets such a task.
    """

    group: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes: int
    schema: str | None = None
    additions: FileAdditions | None = None
    file_schema: FileSchema | None = None
    omissions: RowOmissions | None = None
    row_columns: tuple[RowColumn, ...] = ()


def build_task(
    table: TableRef,
    index: int,
    group: ClusteringGroup,
    outputs: Sequence[str],
    *,
    schema: str | None = None,
    omissions: RowOmissions | None = None,
) -> RewriteTask:
    """Return the task of the ``index``-th group of its plan.

    ``omissions`` name all rows that the deltas of the slices delete. Raises Rejected if a slice has deltas and there
    are no ``omissions``, or if a slice has no data file.
    """
    for item in group.slices:
        which = f"{table.name}: slice {item.file_id} of partition {item.partition!r}"
        if item.log_files and omissions is None:
            raise Rejected(f"{which} has deltas ({', '.join(item.log_files)}), which engines do not read")
        if item.path is None:
            raise Rejected(f"{which} has no data file, and engines read only data files")
    return RewriteTask(
        group=index,
        inputs=tuple(resolve_path(table.location, str(item.path)) for item in group.slices),
        outputs=tuple(outputs),
        bytes=group.bytes,
        schema=schema,
        omissions=omissions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutput:
    """A file that an engine wrote for a group."""

    group: int
    path: str
    bytes: int
    rows: int


class RewriteEngine(Protocol):
    """A way to rewrite data files. All engines write the same rows and types."""

    #: the name in the setting ``engine``; engines of one name are for files of different formats
    name: str

    def unsupported_reason(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        """Return why this engine can't rewrite the group, such as schemas that differ; None if it can."""

    def rewrite(
        self,
        tasks: Sequence[RewriteTask],
        options: RewriteOptions,
        report: Callable[[RewriteProgress], None],
        cancelled: threading.Event,
    ) -> Iterator[EngineOutput]:
        """Write every output of ``tasks``. Raises the errors of ``TableWriter.rewrite``. Stops once ``cancelled``.

        If an input can't be read, the Conflict also has the skipped groups (``SkippedGroup``), with the paths that the
        tasks have. The format replaces these paths by its own names, which the planner uses.
        """


@runtime_checkable
class OmitsRows(Protocol):
    """An engine that leaves out the rows that ``RewriteTask.omissions`` name."""

    omits_rows: Literal[True]


@runtime_checkable
class AddsRowColumns(Protocol):
    """An engine that stores the columns that ``RewriteTask.row_columns`` name."""

    adds_row_columns: Literal[True]


@runtime_checkable
class ChecksManyTasks(Protocol):
    """An engine that checks the groups of a plan together, which is faster than one after the other."""

    def unsupported_reasons(self, tasks: Sequence[RewriteTask], options: RewriteOptions) -> Sequence[str | None]:
        """Return ``RewriteEngine.unsupported_reason`` of each task."""


@contextmanager
def slice_paths_in_conflicts(table: TableRef, plan: Plan, tasks: Sequence[RewriteTask]) -> Iterator[None]:
    """Replace the paths of files to quarantine, in a Conflict that the block raises, by those of the plan's slices."""
    try:
        yield
    except Conflict as error:
        if len(error.args) < 2:
            raise
        names = {
            resolve_path(table.location, str(item.path)): str(item.path)
            for task in tasks
            for item in plan.groups[task.group].slices
        }
        named = [
            replace(one, quarantine=tuple(names.get(path, path) for path in one.quarantine)) for one in error.args[1]
        ]
        raise Conflict(error.args[0], tuple(named)) from error
