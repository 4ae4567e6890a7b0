# SPDX-License-Identifier: Apache-2.0
"""The engine ``arrow``: how much memory it takes, and files in an object store."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_server import S3Server
from verification_case import table

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.spark_tasks import pack_code
from lake.engines import RewriteTask
from lake.errors import Conflict
from lake.plan import RewriteOptions

OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30)

#: the high-water mark of this program's own memory: what getrusage tells begins with that of whoever started it
_MEASURE = """
import re, sys
from pathlib import Path
from executors.engines.group_rewrite import rewrite_task
from executors.engines.spark_tasks import rewrite_bundle
from lake.engines import RewriteTask
from lake.plan import RewriteOptions
output, *inputs = sys.argv[1:]
task = RewriteTask(group=0, inputs=tuple(inputs), outputs=(output,), bytes=1)
((_, (written,), _),) = rewrite_bundle([task], RewriteOptions(target_file_max_bytes=1 << 30), ({}, {}), rewrite_task)
(peak_kib,) = re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(written.rows, int(peak_kib) // 1024)
"""


@pytest.mark.slow
def test_row_groups_that_are_small_on_disk_and_large_in_memory_are_rewritten_in_less_than_they_decode_to(tmp_path):
    words = pa.array([f"{n:0300}" for n in range(50)])
    rows = pa.table({"word": words.take(pa.array([n * 7 % 50 for n in range(400_000)]))})
    paths = [str(tmp_path / f"{n}.parquet") for n in range(6)]
    for path in paths:
        pq.write_table(rows, path, row_group_size=rows.num_rows)
    assert rows.nbytes * len(paths) > 690 << 20
    assert measured(paths, tmp_path) == (2_400_000, pytest.approx(250, abs=200))


@pytest.mark.slow
def test_a_row_group_that_is_large_on_disk_is_read_a_buffer_at_a_time(tmp_path):
    path = str(tmp_path / "large.parquet")
    values = np.random.default_rng(7).random((8, 4_000_000))
    pq.write_table(
        pa.table({f"c{n}": column for n, column in enumerate(values)}),
        path,
        row_group_size=4_000_000,
        use_dictionary=False,
    )
    assert Path(path).stat().st_size > 240 << 20
    assert measured([path], tmp_path) == (4_000_000, pytest.approx(250, abs=150))


def measured(inputs: Sequence[str], folder: Path) -> tuple[int, int]:
    """Rows of what is written of ``inputs`` by a process of its own, and its peak memory in MiB."""
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-c", _MEASURE, str(folder / "new.parquet"), *inputs]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    rows, peak_mib = map(int, done.stdout.split())
    return rows, peak_mib


def test_spark_is_sent_all_that_tasks_import_and_no_library_of_the_service(tmp_path: Path):
    pack_code(tmp_path / "tasks.zip")
    imports = "import sys; sys.path.insert(0, sys.argv[1]); import executors.engines.spark_tasks; "
    # As the arguments of a task import them.
    additions = "import lake.formats.hudi.files.additions, lake.formats.iceberg.files.position_deletes; "
    ours = "[m for n, m in sys.modules.items() if n.split('.')[0] in ('executors', 'lake', 'planner', 'service')]"
    others = "{'pyspark', 'py4j', 'sqlalchemy', 'fastavro', 'hudi'} & set(sys.modules)"
    told = f"print({{m.__file__.split('.zip')[0] for m in {ours}}}, {others})"
    done = subprocess.run(
        [sys.executable, "-c", imports + additions + told, str(tmp_path / "tasks.zip")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (f"{ {str(tmp_path / 'tasks')} } set()", "")


def test_files_in_an_object_store_are_rewritten_there(bucket: str, s3_server: S3Server, tmp_path: Path):
    parts = [table(range(n * 50, n * 50 + 50)) for n in range(3)]
    for number, rows in enumerate(parts):
        pq.write_table(rows, f"{bucket}/t/{number}.parquet", filesystem=s3_server.filesystem())
    inputs = tuple(f"s3a://{bucket}/t/{number}.parquet" for number in range(3))
    engine = ArrowEngine(InProcessBackend(1))
    task = RewriteTask(group=0, inputs=inputs, outputs=(f"s3a://{bucket}/new/a", f"s3a://{bucket}/new/b"), bytes=1)
    assert engine.unsupported_reason(task, OPTIONS) is None
    written = list(engine.rewrite([task], OPTIONS, lambda _: None, threading.Event()))
    found = [pq.read_table(f"{bucket}/new/{name}", filesystem=s3_server.filesystem()) for name in "ab"]
    assert pa.concat_tables(found).equals(pa.concat_tables(parts))
    assert [(file.path, file.rows) for file in written] == [(path, 75) for path in task.outputs]
    gets = [request for request in s3_server.requests() if request.startswith("GET") and "/t/0.parquet" in request]
    assert len(gets) == 3, "its footer, when the engine is chosen and when it rewrites, and the file"
    gone = RewriteTask(group=1, inputs=(f"s3a://{bucket}/t/9.parquet",), outputs=(f"s3a://{bucket}/new/c",), bytes=1)
    with pytest.raises(Conflict, match="is gone from storage"):
        list(engine.rewrite([gone], OPTIONS, lambda _: None, threading.Event()))
