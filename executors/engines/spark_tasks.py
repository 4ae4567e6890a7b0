# SPDX-License-Identifier: Apache-2.0
"""Groups rewritten in Python tasks of a Spark session: on all of its executors, in processes with memory of their own.

One job runs all groups, several in a task, since a task itself costs a tenth of a second. An accumulator returns the
results of a task as soon as it has ended. If Spark runs a task twice, only the first result counts.
"""

import logging
import sys
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import lake
from executors.engines.backends import GroupResult, R, T, TaskRewriter, bundle_tasks
from lake.engines import EngineOutput, RewriteTask
from lake.errors import CancelRequested, EngineUnavailable, LakefoldError, Transient, one_line
from lake.plan import RewriteOptions
from lake.ports import SparkProvider
from lake.spark_jobs import cancel_jobs
from lake.storage import hdfs, s3

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
#: up to this number of files, a job would take longer than reading their footers in this process
MIN_FILES_FOR_JOB = 500
#: with fewer files in a task, starting the task would take a considerable part of the time
_FILES_A_TASK = 2_000
#: how long tasks of a cancelled job may take to end
_ENDS_SECONDS = 10.0
#: the modules that tasks import; of each format the modules that ``lake.engines.FileAdditions`` may need
_PACKED_FILES = (
    "lake/*.py",
    "lake/relocation/*.py",
    "lake/formats/__init__.py",
    "lake/formats/*/__init__.py",
    "lake/formats/*/files/*.py",
    "lake/storage/*.py",
    "executors/__init__.py",
    "executors/nested_types.py",
    "executors/rowhash.py",
    "executors/verification.py",
    "executors/verified_files.py",
    "executors/datafiles/*.py",
    "executors/engines/*.py",
    "executors/engines/layout/*.py",
    "executors/engines/stitch/*.py",
)
#: errors of an executor's Python that can't run the tasks; every further attempt would fail as well
_PYTHON_MISMATCH_ERRORS = ("ModuleNotFoundError", "PYTHON_VERSION_MISMATCH", "Cannot run program")


class SparkTasks:
    """Runs tasks in the session that ``spark`` gives."""

    def __init__(self, spark: SparkProvider) -> None:
        self._spark = spark
        #: the address at which the jobs can be watched
        self.ui: str | None = None

    def run(
        self,
        tasks: Sequence[RewriteTask],
        options: RewriteOptions,
        cancelled: threading.Event,
        rewriter: TaskRewriter,
    ) -> Iterator[GroupResult]:
        """See ``executors.engines.backends.RewriteBackend``."""
        context = self._spark().sparkContext
        self.ui = context.uiWebUrl
        _ship_code(context)
        job = _SparkJob(context, bundle_tasks(tasks, context.defaultParallelism), options, rewriter)
        reported: set[int] = set()
        with job:
            while True:
                is_finished = job.finished.wait(_POLL_SECONDS)
                for ended in job.results():
                    if ended[0] not in reported:
                        reported.add(ended[0])
                        yield ended
                if is_finished or cancelled.is_set():
                    break
        if cancelled.is_set():
            raise CancelRequested("cancelled during the rewrite")
        if job.error is not None:
            raise _to_outcome(job.error) from job.error
        if len(reported) < len(tasks):
            raise Transient(f"Spark lost the results of {len(tasks) - len(reported)} groups")

    def map(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        *,
        files: int,
        check: Callable[[], None] = lambda: None,
    ) -> Sequence[R]:
        """See ``executors.engines.backends.RewriteBackend``. ``check`` is called often and may raise to end the work.

        For few files, or if the executors can't run Python, the work is done in this process.
        """
        if files >= MIN_FILES_FOR_JOB and len(items) > 1:
            context = self._spark().sparkContext
            if context.applicationId not in _applications_without_python:
                try:
                    return self._map_in_tasks(context, function, items, files, check)
                except EngineUnavailable as error:
                    _applications_without_python.add(context.applicationId)
                    log.warning("%s; until then this process reads all footers", error)
        found = []
        for item in items:
            check()
            found.append(function(item))
        return found

    def _map_in_tasks(
        self,
        context: "SparkContext",
        function: Callable[[T], R],
        items: Sequence[T],
        files: int,
        check: Callable[[], None],
    ) -> Sequence[R]:
        _ship_code(context)
        access = s3.current_configuration(), hdfs.current_configuration()

        def run(part: Sequence[T]) -> list[R]:
            prepare_worker(access)
            return [function(item) for item in part]

        # A multiple of the number of cores, so that no core idles while others work on a last task.
        cores = context.defaultParallelism
        count = min(len(items), cores * max(1, -(-files // (cores * _FILES_A_TASK))))
        # Neighbours are in different tasks, since they often are of one size.
        parts = [items[number::count] for number in range(count)]
        with _SparkCall(context, lambda: context.parallelize(parts, count).map(run).collect()) as call:
            while not call.finished.wait(_POLL_SECONDS):
                check()
        if call.error is not None:
            raise _to_outcome(call.error) from call.error
        found: list[R] = [call.result[index % count][index // count] for index in range(len(items))]
        return found


class _ListAccumulator:
    """Adds up the results of tasks for an accumulator of pyspark."""

    def zero(self, value: list[GroupResult]) -> list[GroupResult]:
        return []

    def addInPlace(self, value1: list[GroupResult], value2: list[GroupResult]) -> list[GroupResult]:  # noqa: N802
        return [*value1, *value2]


class _SparkCall:
    """A call that runs Spark jobs, in a thread within a ``with`` block; the tasks end soon after the block."""

    def __init__(self, context: "SparkContext", call: Callable[[], Any]) -> None:
        self._context, self._call = context, call
        self._tag = f"lakefold-rewrite-{uuid.uuid4().hex}"
        self.finished = threading.Event()
        self.error: Exception | None = None
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, name=self._tag, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.finished.is_set():
            cancel_jobs(self._context, self._tag)
        self._thread.join(_ENDS_SECONDS)

    def _run(self) -> None:
        try:
            self._context.addJobTag(self._tag)
            self.result = self._call()
        except Exception as error:
            self.error = error
        finally:
            self.finished.set()


class _SparkJob(_SparkCall):
    """The job that rewrites groups."""

    def __init__(
        self,
        context: "SparkContext",
        work: Sequence[list[RewriteTask]],
        options: RewriteOptions,
        rewriter: TaskRewriter,
    ) -> None:
        super().__init__(context, self._rewrite)
        self._work, self._options, self._rewriter = work, options, rewriter
        self._results: Any = context.accumulator([], _ListAccumulator())

    def results(self) -> list[GroupResult]:
        """Return the groups of all tasks that have ended."""
        found: list[GroupResult] = self._results.value
        return found

    def _rewrite(self) -> None:
        ended, options, rewriter = self._results, self._options, self._rewriter
        access = s3.current_configuration(), hdfs.current_configuration()

        def rewrite(work: list[RewriteTask]) -> None:
            ended.add(rewrite_bundle(work, options, access, rewriter))

        self._context.parallelize(self._work, len(self._work)).foreach(rewrite)


def rewrite_bundle(
    tasks: Sequence[RewriteTask],
    options: RewriteOptions,
    configuration: tuple[Mapping[str, str], Mapping[str, str]],
    rewriter: TaskRewriter,
) -> list[GroupResult]:
    """Rewrite the groups of one task. The error of a group is returned, not raised: Spark would retry the whole task.

    ``configuration`` has the settings of S3 and of HDFS.
    """
    prepare_worker(configuration)
    found: list[GroupResult] = []
    for task in tasks:
        began = time.process_time()  # of the whole process: a worker has one task at a time
        ended: list[EngineOutput] | LakefoldError
        try:
            ended = rewriter(task, options, lambda: None)
        except LakefoldError as error:
            ended = error
        found.append((task.group, ended, time.process_time() - began))
    _release_memory()
    return found


def prepare_worker(configuration: tuple[Mapping[str, str], Mapping[str, str]]) -> None:
    """Set up Spark's Python worker for the code of a task. ``configuration`` has the settings of S3 and of HDFS."""
    import pyarrow as pa

    # mimalloc, the default, keeps freed memory in a worker that Spark uses again. malloc spends a sixth of a rewrite on
    # fresh pages from the system. jemalloc is missing on some platforms.
    has_jemalloc = "jemalloc" in pa.supported_memory_backends()
    pa.set_memory_pool(pa.jemalloc_memory_pool() if has_jemalloc else pa.system_memory_pool())
    s3.configure(configuration[0])
    hdfs.use_configuration(configuration[1])


def _release_memory() -> None:
    """Return the memory of a rewrite to the system, also if Spark keeps the worker for a next task."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


_lock = threading.Lock()
_applications_with_code: set[str] = set()
_applications_without_python: set[str] = set()


def _ship_code(context: "SparkContext") -> None:
    """Send the modules that tasks import to the executors' Python, once for each application."""
    with _lock:
        if context.applicationId in _applications_with_code:
            return
        # Only spark-submit reads spark.pyspark.python, and it did not start this process.
        here = sys.executable if context.master.startswith("local") else context.pythonExec
        context.pythonExec = context.getConf().get("spark.pyspark.python", here)
        # The folder exists as long as the context, and executors fetch the file with their first task.
        archive = Path(context._temp_dir) / "lakefold_tasks.zip"
        pack_code(archive)
        context.addPyFile(str(archive))
        _applications_with_code.add(context.applicationId)


def pack_code(archive: Path) -> None:
    """Write the modules of lakefold that tasks import into ``archive``."""
    root = Path(lake.__file__).parent.parent
    with zipfile.ZipFile(archive, "w") as file:
        for pattern in _PACKED_FILES:
            for path in sorted(root.glob(pattern)):
                file.write(path, path.relative_to(root))


def _to_outcome(error: Exception) -> LakefoldError:
    """Return the outcome of a job that failed with ``error``."""
    message = str(error)
    lines = [text.strip() for text in message.splitlines()]
    if any(word in message for word in _PYTHON_MISMATCH_ERRORS):
        why = next(text for text in lines if any(word in text for word in _PYTHON_MISMATCH_ERRORS))
        return EngineUnavailable(
            f"engines arrow and stitch need lakefold's Python version and its pyarrow on Spark's executors "
            f"({why[:300]}); set spark.pyspark.python in [spark], or engine = spark"
        )
    head = next((text for text in lines if "Exception" in text or "Error" in text), one_line(error))
    return Transient(f"Spark could not run the tasks of the rewrite: {head[:300]}")
