# SPDX-License-Identifier: Apache-2.0
"""``python toy_lakefold.py ARGUMENTS`` is ``lakefold ARGUMENTS`` that also knows the toy format, and its troubles.

Files in a table's directory make them: while there is ``wait`` its rewrites do not begin, ``deadly`` kills the process
that begins one, and with ``spoiled`` each rewrite loses a row.
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import daemon_toys
from toys.timeline import ToyFormat, ToyWriter

from lake.engines import Engine
from lake.model import TableRef
from lake.ports import SparkProvider


class TroubledFormat(ToyFormat):
    """The toy format with the troubles above."""

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[Engine] = ()) -> ToyWriter:
        """See ToyFormat."""
        folder = Path(table.location)
        while (folder / "wait").exists():
            time.sleep(0.02)
        if (folder / "deadly").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        spoiled = (folder / "spoiled").exists()
        self.defect = lambda rows: rows.slice(1) if spoiled else rows
        return super().writer(table, spark)


if __name__ == "__main__":
    daemon_toys.install(TroubledFormat())
    from service.cli import main

    main()
