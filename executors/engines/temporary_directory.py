# SPDX-License-Identifier: Apache-2.0
"""Temporary directories of a task on local disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lake.errors import Transient, first_line


@contextmanager
def temporary_directory(prefix: str) -> Iterator[Path]:
    """Create a directory whose name begins with ``prefix``, and remove it when the block ends.

    It is in a directory of Spark's if Spark runs the task: Spark removes it with its executor, even if the task is
    killed. Raises Transient if the directory can't be created.
    """
    try:
        folder = TemporaryDirectory(prefix=prefix, dir=_directory_of_spark(), ignore_cleanup_errors=True)
    except OSError as error:
        raise Transient(
            f"a temporary directory can't be created: {first_line(error)}; set {directory_setting()}"
        ) from error
    with folder as name:
        yield Path(name)


def directory_setting() -> str:
    """Return the name of the setting that determines where temporary directories are."""
    return "TMPDIR" if _directory_of_spark() is None else "spark.local.dir"


def _directory_of_spark() -> str | None:
    """Return the first of Spark's local directories, which Spark gives to its Python tasks. None outside of them."""
    first = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return first if first and Path(first).is_dir() else None
