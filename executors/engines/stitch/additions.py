# SPDX-License-Identifier: Apache-2.0
"""Adds what a table's format requires, such as replaced column values, to files that consist of copied row groups.

``lake.engines.FileAdditions`` describes these additions. Of each row group only the columns that the format reads or
replaces are decoded. pyarrow writes the replaced columns to a temporary file, with a row group for each row group of
the output.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.types as pat

from executors.engines.group_rewrite import writing_output
from executors.engines.inputs import CommonLayout, UnsupportedInput
from executors.engines.outputs import ParquetWriteSettings, stored_rows
from executors.engines.stitch.decoding import RowDecoder
from executors.engines.stitch.parquet import AddedFile, SourceGroup, source_groups
from executors.engines.stitch.raw_file import RawParquetFile
from lake.engines import FileAdditions


def verify_replaceable(layout: CommonLayout, additions: FileAdditions) -> None:
    """Raise UnsupportedInput if the columns of ``additions`` can't be read or replaced without the other columns."""
    for name in {*additions.read_columns, *additions.replaced_columns}:
        if [name.encode()] not in layout.footer.leaf_paths or name in layout.int96_columns:
            raise UnsupportedInput(f"column {name} is missing, nested or INT96")
    for name in additions.replaced_columns:
        kind = layout.schema.field(name).type
        kind = kind.value_type if pat.is_dictionary(kind) else kind
        if kind not in (pa.string(), pa.binary()):
            raise UnsupportedInput(f"column {name} is not text, so it can't be replaced")


def add_to_file(
    additions: FileAdditions,
    path: str,
    part: Sequence[SourceGroup],
    decoder: RowDecoder,
    compression: str | None,
    folder: str,
) -> AddedFile:
    """Create the format's addition for ``path``, and write the replaced columns of its row groups to ``folder``.

    Raises the errors of ``executors.engines.group_rewrite.rewrite_task``.
    """
    layout = decoder.layout
    names = [name for name in layout.schema.names if name in additions.replaced_columns]
    read = [name for name in layout.schema.names if name in {*additions.read_columns, *names}]
    settings = ParquetWriteSettings(layout, compression, max((one.group.rows for one in part), default=1))
    schema = pa.schema([settings.schema.field(name) for name in names])
    addition = additions.create_file(path)
    temporary = str(Path(folder) / f"{addition.path.rpartition('/')[2]}.columns")
    with writing_output(temporary), settings.open_writer(temporary, names) as writer:
        for one in part:
            batches = [addition.add(batch).select(names) for batch in decoder.rows([one], read)]
            writer.write_table(stored_rows(batches, schema), row_group_size=one.group.rows)
    columns = source_groups([RawParquetFile.read(temporary)])
    if [one.group.rows for one in columns] != [one.group.rows for one in part]:
        raise pa.ArrowInvalid(f"{temporary} has other row groups than {addition.path}")
    leaves = [layout.footer.leaf_paths.index([name.encode()]) for name in names]
    return AddedFile(addition=addition, leaves=leaves, columns=columns)
