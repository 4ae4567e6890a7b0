# SPDX-License-Identifier: Apache-2.0
"""A process that rewrites damaged files within limits of memory and time, and reports how each rewrite ended.

A crash of pyarrow ends this process instead of the tests. ``python -m rewriting_process`` reads a line of JSON for each
rewrite and writes one.
"""

import gc
import json
import os
import resource
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from lake.engines import RewriteTask
from lake.errors import Conflict, Rejected, Transient
from lake.plan import RewriteOptions

ENGINES = {one.name: one for one in (ParquetStitchEngine, HybridEngine, ArrowEngine)}
#: address space beyond that of a process which has rewritten a file
_MOST_BYTES = 1 << 30
_MOST_SECONDS = 20.0


class RewritingProcess:
    """Rewrites files in another process, which is started again after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def rewrite(self, engine: str, paths: Sequence[str], output: str) -> dict[str, Any]:
        """Return how a rewrite ended, as ``outcome`` does. Raises AssertionError after a crash or a hang."""
        if self._process is None:
            # One arena and no reserve of pages, so that a limit of the address space counts what is allocated.
            settings = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
            settings["PYTHONPATH"] = os.pathsep.join(sys.path)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rewriting_process"],
                env=os.environ | settings,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps([engine, list(paths), output]), file=process.stdin, flush=True)
        if not select.select([process.stdout], [], [], _MOST_SECONDS)[0]:
            self.close()
            raise AssertionError(f"the engine {engine} did not end within {_MOST_SECONDS:.0f} s")
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self.close()
            raise AssertionError(f"the engine {engine} ended its process with exit code {code}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()  # closes the pipes
            self._process = None


def content(paths: Sequence[str]) -> list[str]:
    """The columns of some files as text, where one NaN is another one."""
    rows = pa.concat_tables([pq.ParquetFile(path).read() for path in paths]).combine_chunks()
    return [str(column.type) + column.to_string(window=1000, container_window=1000) for column in rows.columns]


def outcome(engine: str, paths: Sequence[str], output: str) -> dict[str, Any]:
    """Return whether the rewrite was refused, or wrote what a reader reads of the inputs, or something else.

    ``memory`` are the bytes that pyarrow and Python allocated at most for the rewrite.
    """
    made = ENGINES[engine](InProcessBackend(1))
    least = 1 << 40 if engine == "hybrid" else 0
    options = RewriteOptions(target_file_max_bytes=1 << 30, engine=engine, min_row_group_bytes=least)
    task = RewriteTask(group=0, inputs=tuple(paths), outputs=(output,), bytes=1)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    ended, reason = "written", ""
    try:
        if (refused := made.unsupported_reason(task, options)) is not None:
            ended, reason = "refused", refused
        else:
            list(made.rewrite([task], options, lambda _: None, threading.Event()))
    except (Conflict, Transient, Rejected) as error:
        ended, reason = "refused", str(error)
    except Exception as error:
        ended, reason = "failed", repr(error)
    memory = _resident("VmHWM") - before
    left = [one.name for one in Path(output).parent.iterdir()]
    if ended != "written":
        return {"ended": ended, "reason": reason, "memory": memory, "left": left}
    try:
        wanted = content(paths)
    except Exception:
        return {"ended": "written", "reason": "no reader reads the inputs", "memory": memory, "left": left}
    try:
        found = content([output])
    except Exception as error:
        return {"ended": "wrong", "reason": repr(error), "memory": memory, "left": left}
    same = found == wanted
    return {"ended": "written" if same else "wrong", "reason": "", "memory": memory, "left": left}


def _resident(key: str) -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)]
    return int(line.split()[1]) * 1024


def main() -> None:
    """Rewrite what each line of the input names."""
    limited = False
    for line in sys.stdin:
        engine, paths, output = json.loads(line)
        found = outcome(engine, paths, output)
        if not limited:
            limited = True
            most = _resident("VmSize") + _MOST_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
