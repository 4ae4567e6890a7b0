# SPDX-License-Identifier: Apache-2.0
"""The memory of a task that rewrites one group of 2 GiB, by engine, above the memory of the idle process.

The group are the 2,000 files of set A of ``bench/rewriting.py``, the case with the most row groups and footers. They
become three files. Each engine has its own process, which first rewrites a small group: Spark's workers are used again
as well, and imported modules count as idle. Exits 1 if an engine needs more than 400 MiB.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

if __name__ == "__main__":
    # Needed to run from a clone without an installation.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.lineitem import SETS, write_set

ENGINES = ("stitch", "hybrid", "arrow")
BAR_MIB = 400.0
TARGET_BYTES = 1 << 30
_WARM_FILES = 20


def measure(engine: str, source: Path, folder: Path) -> dict[str, float]:
    """Rewrite all files of ``source`` as one group in this process. Returns seconds and MiB above the idle process."""
    import pyarrow as pa

    from bench.processes import memory
    from executors.engines.arrow import ArrowEngine
    from executors.engines.backends import InProcessBackend
    from executors.engines.spark_tasks import prepare_worker
    from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
    from lake.engines import RewriteTask
    from lake.plan import RewriteOptions

    prepare_worker(({}, {}))
    kinds = {"stitch": ParquetStitchEngine, "hybrid": HybridEngine, "arrow": ArrowEngine}
    rewriter = kinds[engine](InProcessBackend(1))
    options = RewriteOptions(target_file_max_bytes=TARGET_BYTES, engine=engine)
    found = sorted(map(str, source.glob("part=*/*.parquet")))

    def rewrite(name: str, files: list[str], outputs: int) -> None:
        paths = tuple(str(folder / f"{name}-{number}.parquet") for number in range(outputs))
        task = RewriteTask(group=0, inputs=tuple(files), outputs=paths, bytes=sum(map(os.path.getsize, files)))
        list(rewriter.rewrite([task], options, lambda _: None, threading.Event()))

    rewrite("warm", found[:_WARM_FILES], 1)
    # Otherwise memory that malloc has not returned to the system yet would count as idle.
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")
    idle, begun = memory("self", "VmRSS"), time.perf_counter()
    rewrite("group", found, 3)
    seconds, peak = time.perf_counter() - begun, memory("self", "VmHWM")
    return {"seconds": seconds, "mib": (peak - idle) / (1 << 20), "idle_mib": idle / (1 << 20)}


def measure_all(source: Path, scratch: Path) -> dict[str, dict[str, float]]:
    """Return the figures of each engine, measured in a process of its own. The new files are in ``scratch``."""
    found = {}
    for engine in ENGINES:
        with tempfile.TemporaryDirectory(prefix="memory-", dir=scratch) as folder:
            command = [sys.executable, __file__, "--one", engine, str(source), folder]
            found[engine] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> int:
    """Print the figures; returns 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()), help="directory of the files")
    parser.add_argument("--one", nargs=3, metavar=("ENGINE", "SOURCE", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        engine, source, folder = arguments.one
        print(json.dumps(measure(engine, Path(source), Path(folder))))
        return 0
    source = arguments.keep.absolute() / "A"
    write_set(source, SETS["A"])
    missed = False
    for engine, figures in measure_all(source, arguments.keep.absolute()).items():
        print(
            f"{engine:<8} {figures['seconds']:>7.1f} s {figures['mib']:>6.0f} MiB above {figures['idle_mib']:.0f} MiB"
        )
        missed |= figures["mib"] > BAR_MIB
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
