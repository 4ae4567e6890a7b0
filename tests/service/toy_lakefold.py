# SPDX-License-Identifier: Apache-2.0
"""``python toy_lakefold.py ARGUMENTS`` is ``lakefold ARGUMENTS`` that also knows the toy format, and its troubles.

Files in a table's directory make them: while there is ``wait`` its rewrites do not begin, ``deadly`` kills the process
that begins one, with ``spoiled`` each rewrite loses a row, with ``full`` the disk is full, and with ``contested`` a
writer changes what is rewritten.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import daemon_toys
import pyarrow as pa
from toys.files import rows
from toys.timeline import ToyFormat, ToyWriter
from toys.timeline_tables import append_log

from lake.engines import RewriteEngine
from lake.errors import Transient
from lake.model import TableRef
from lake.plan import Commit
from lake.ports import Rewrite, SparkProvider


class TroubledWriter(ToyWriter):
    """The toy format's writer on a table that others write to at the worst of times."""

    def commit(self, rewrite: Rewrite) -> Commit:
        """See ToyWriter."""
        if (self._base / "contested").exists():
            one = rewrite.prepared.plan.groups[0].slices[0]
            append_log(self._table, str(one.path), rows(0, 1))
        return super().commit(rewrite)

    def defect(self) -> Callable[[pa.Table], pa.Table] | None:
        """See ToyWriter. The format is shared by the slots of an executor, so it can't know which table is spoiled."""
        return (lambda table: table.slice(1)) if (self._base / "spoiled").exists() else None


class TroubledFormat(ToyFormat):
    """The toy format with the troubles above."""

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[RewriteEngine] = ()) -> ToyWriter:
        """See ToyFormat."""
        folder = Path(table.location)
        while (folder / "wait").exists():
            time.sleep(0.02)
        if (folder / "deadly").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if (folder / "full").exists():
            raise Transient(os.strerror(errno.ENOSPC))
        return TroubledWriter(self, table)


if __name__ == "__main__":
    daemon_toys.install(TroubledFormat())
    from service.cli.main import main

    main()
