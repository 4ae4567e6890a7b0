# SPDX-License-Identifier: Apache-2.0
"""Tables that tests copy, kept on disk: built once for all processes of a run, and for the runs after it.

A table is built anew where the modules that say how have changed, or the Hudi bundle or Spark.
"""

import fcntl
import hashlib
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import hudi_tables
from support import BUNDLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: beside the clone's own environment, with which they go
KEPT = Path(sys.prefix) / "tables"
_sound: set[Path] = set()


def kept(kind: str, name: str, build: Callable[[Path], object], recipe: str) -> Path:
    """The table called ``name`` that ``build`` makes, of a kind that no other table is. No test may change it.

    ``recipe`` is the file with the code of ``build``.
    """
    place = KEPT / re.sub(r"\W+", "-", kind) / f"{BUNDLE}-{_digest([Path(hudi_tables.__file__), Path(recipe)])}"
    base, seal = place / name, place / "seal"
    if base in _sound:
        return base
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes build two tables meanwhile, not the same one twice
        if not seal.exists():
            shutil.rmtree(base, ignore_errors=True)
            build(base)
            seal.write_text(_state(base))
        assert seal.read_text() == _state(base), f"a test has changed {base}, which others copy; remove {KEPT}"
    for other in place.parent.glob(f"{BUNDLE}-*"):
        if other != place:
            shutil.rmtree(other, ignore_errors=True)
    _sound.add(base)
    return base


def small_table(spark: "SparkSession") -> Path:
    """A table ``trips``: 600 rows with ids 0 to 599 in six small files in two partitions, copy-on-write."""
    return kept("small", "trips", lambda base: hudi_tables.small_files(spark, base), __file__)


def _digest(files: Iterable[Path]) -> str:
    text = b"\0".join([version("pyspark").encode(), *(file.read_bytes() for file in files)])
    return hashlib.sha256(text).hexdigest()[:16]


def _state(base: Path) -> str:
    """Every file with its size and time."""
    files = ((path, path.stat()) for path in sorted(base.rglob("*")) if path.is_file())
    return "\n".join(f"{path.relative_to(base)} {status.st_size} {status.st_mtime_ns}" for path, status in files)
