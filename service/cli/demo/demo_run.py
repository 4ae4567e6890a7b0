# SPDX-License-Identifier: Apache-2.0
"""The run of ``lakefold demo``: a real writer and the real daemon in separate processes, on one table.

Nothing is simulated. The demo writes a lakefold.toml and starts ``lakefold serve``. It reads the database and the table
through the public interfaces, edits the retention in the file, and compares the table with the writer's ledger.
``LAKEFOLD_DEMO_SCALE`` (default 1) scales the number of rows and files.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from executors.relocation.sweep import partitions_awaiting_sweep
from lake.formats import load_format
from lake.plan import LIVE_STATES, PlanState
from lake.storage.locations import resolve_path
from lake.units import format_bytes, format_duration
from service.cli.demo import measure, settings
from service.cli.demo.ledger import LedgerComparison, WriterLedger, compare
from service.cli.demo.processes import Child
from service.cli.demo.report import DemoReport, ObservedState
from service.cli.demo.table_formats import DemoLake, create_lake
from service.cli.demo.writer_events import WriterEvents
from service.cli.output.command_output import CommandOutput
from service.problems import USAGE, ExitCode, ProblemError
from service.text import plural

if TYPE_CHECKING:
    from lake.plan_store import SupersededRecord
    from service.control.store import ScanRecord, Store

_LIMITS = {"small_file_limit": settings.SMALL_FILE_LIMIT_BYTES, "target_file_max": settings.TARGET_FILE_MAX_BYTES}
_FILL_ROWS, _FILL_FILES = 96_000, 12
#: the live view of plans ends after this time if a plan has completed
_WATCH_SECONDS = 75.0
#: a step that makes no progress for this long is an error
_TIMEOUT_SECONDS = 600.0
_POLL_SECONDS = 0.5


def run(format: settings.Format, workdir: Path | None = None, keep: bool = False, json: bool = False) -> ExitCode:
    """Run the demo; returns PARTIAL if the table differs from the writer's ledger.

    Raises ProblemError for a directory that can't be used, ChildFailed if writer or daemon ended unexpectedly.
    """
    directory = _directory(workdir)
    _clear_environment()
    with _interruptible():
        return _Demo(
            directory, create_lake(format, directory / "lake"), keep, DemoReport(CommandOutput(json=json))
        ).run()


def _directory(chosen: Path | None) -> Path:
    """Return the empty directory for all files of the demo. Raises ProblemError if ``chosen`` is not empty."""
    if chosen is None:
        return Path(tempfile.mkdtemp(prefix="lakefold-demo-")).resolve()
    directory = chosen.expanduser().resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        full = any(directory.iterdir())
    except OSError as error:
        raise ProblemError(USAGE, f"--workdir {directory}: {error.strerror or error}") from error
    if full:
        raise ProblemError(USAGE, f"--workdir {directory} is not empty; choose another directory or empty it")
    return directory


def _clear_environment() -> None:
    """Remove LAKEFOLD_ variables, so that the demo's lakefold.toml is the only configuration, also of its children."""
    for name in list(os.environ):
        if name.startswith("LAKEFOLD_") and name not in ("LAKEFOLD_CACHE", "LAKEFOLD_DEMO_SCALE", "LAKEFOLD_DEBUG"):
            del os.environ[name]


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does: through ``finally``, which stops the children."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_healthy(scan: "ScanRecord", files_before: int) -> bool:
    """Return True if at most a quarter of the files remain, or at most half of them and nothing is reducible.

    The writer adds new files all the time.
    """
    return scan.files <= files_before / 4 or (scan.files <= files_before / 2 and not scan.reducible_bytes)


def _has_live_plans(store: "Store") -> bool:
    return any(store.plans(table=settings.TABLE, state=state, limit=1) for state in LIVE_STATES)


class _Demo:
    def __init__(self, directory: Path, lake: DemoLake, keep: bool, report: DemoReport) -> None:
        self._directory, self._lake, self._keep, self._report = directory, lake, keep, report
        self._hold_file, self._config = directory / "hold", directory / "lakefold.toml"
        self._port = settings.free_port()
        self._url = f"http://127.0.0.1:{self._port}"
        self._ledger = WriterLedger(directory / "ledger")
        self._writer_events = WriterEvents(directory / "writer.out")
        self._children: list[Child] = []

    def run(self) -> ExitCode:
        finished = False
        try:
            code = self._run_steps()
            finished = True
            return code
        finally:
            if not (finished and self._keep):
                for child in self._children:
                    child.request_stop()
                for child in self._children:
                    child.stop()

    def _run_steps(self) -> ExitCode:
        show = self._report
        show.line(f"lakefold demo: everything it writes is in {self._directory}")
        writer = self._fill()
        self._table = self._lake.table()
        before = measure.measure_layout(self._table, settings.SMALL_FILE_LIMIT_BYTES)
        show.layout(before, _LIMITS, "before")
        slow = measure.time_query(self._lake)
        show.query(slow, measure.QUERY)

        show.chapter(2, "lakefold serve compacts while the writer continues")
        self._write_config(settings.FIRST_RETENTION)
        self._run_lakefold("db", "upgrade")
        daemon = self._serve()
        self._hold_file.unlink()
        with self._opened_store() as store:
            self._watch(store, writer, daemon, before.files)
            self._wait_until_idle(store, writer, daemon)
            after = measure.measure_layout(self._table, settings.SMALL_FILE_LIMIT_BYTES)
            show.layout(after, _LIMITS, "after")
            fast = measure.time_query(self._lake)
            show.query(fast, measure.QUERY, slow)
            self._hold_file.unlink()

            show.chapter(
                3, f"Retention {settings.FIRST_RETENTION} → {settings.SHORT_RETENTION}: replaced files are deleted"
            )
            daemon = self._clean(store, writer, daemon)

            show.chapter(4, "Is every row still there?")
            self._wait_until_idle(store, writer, daemon)
            if not self._keep:
                self._stop(writer, daemon)
            result = self._compare()
            plans = store.plans(table=settings.TABLE, limit=1000)
        show.event(f"{self._lake.reader} reads {result}", "compared", equal=result.equal, comparison=result)
        lost = sum(plan.state is PlanState.CANCELLED for plan in plans)
        tried = (
            f", which repeated a write after {plural(self._writer_events.conflicts, 'conflict')} with a plan"
            if self._lake.has_write_conflicts
            else ""
        )
        show.event(
            f"{plural(self._writer_events.commits, 'commit')} by the writer{tried}; "
            f"{plural(len(plans), 'plan')}, {lost:,} of them cancelled by a conflict and planned again",
            "conflicts",
            commits=self._writer_events.commits,
            writer=self._writer_events.conflicts,
            plans=len(plans),
            lakefold=lost,
        )
        self._hold_file.unlink(missing_ok=True)
        self._print_next_steps(result)
        return ExitCode.OK if result.equal else ExitCode.PARTIAL

    # The writer.

    def _fill(self) -> Child:
        scale = float(os.environ.get("LAKEFOLD_DEMO_SCALE", "1"))
        self._report.chapter(1, f"A {self._lake.writer} in its own process fills {settings.TABLE} with small files")
        self._hold_file.touch()
        if self._lake.server_arguments:
            server = self._start("metastore", self._lake.server_arguments)
            self._wait_for(self._lake.is_ready, "the metastore to answer", server)
            self._report.event("a metastore of its own answers", "server", pid=server.pid)
        arguments = [
            "service.cli.demo.writer",
            *self._lake.writer_arguments,
            "--ledger",
            str(self._ledger.directory),
            "--hold",
            str(self._hold_file),
            "--pause",
            "4",
            "--fill-rows",
            str(max(1000, round(_FILL_ROWS * scale))),
            "--fill-files",
            str(max(2, round(_FILL_FILES * scale))),
            "--spark",
            "spark.driver.memory=1g",
        ]
        writer = self._start("writer", arguments)
        self._report.event(
            f"Spark starts{f' and fetches {missing} once' if (missing := self._lake.missing_jars) else ''}", "started"
        )
        self._wait_for(lambda: self._writer_events.is_holding, "the writer to fill the table", writer, show_writer=True)
        return writer

    def _wait_until_idle(self, store: "Store", writer: Child, daemon: Child) -> None:
        """Wait until no write or plan is running: the writer holds, and all plans have ended."""
        self._hold_file.touch()
        self._wait_for(lambda: self._writer_events.is_holding, "the writer to pause", writer, daemon, show_writer=True)
        self._wait_for(lambda: not _has_live_plans(store), "running plans to end", writer, daemon)
        self._wait_for(
            lambda: not self._has_late_files(store), "the sweep to copy the writer's late files", writer, daemon
        )

    def _has_late_files(self, store: "Store") -> bool:
        """Return True if a relocated partition has late files in its previous location that await the sweep."""
        moved = [one.partition for one in store.relocated_partitions(self._table)]
        return bool(
            partitions_awaiting_sweep(
                self._table, format=load_format(self._table.format), store=store, partitions=moved
            )
        )

    # The daemon.

    def _write_config(self, retention: str) -> None:
        database = self._directory / "lakefold.db"
        source, spark = self._lake.source_config, self._lake.spark_settings
        self._config.write_text(settings.config_text(source, database, self._port, retention, spark))

    def _serve(self) -> Child:
        daemon = self._start("daemon", ["service.cli.main", "serve", "--config", str(self._config)])
        self._report.event(
            f"lakefold serve --config {self._config}; watch it at {self._url}/",
            "serving",
            pid=daemon.pid,
            page=self._url,
        )
        return daemon

    def _run_lakefold(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "service.cli.main", *arguments, "--config", str(self._config)],
            cwd=self._directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ProblemError(USAGE, f"lakefold {' '.join(arguments)} exited {done.returncode}: {done.stderr.strip()}")

    @contextmanager
    def _opened_store(self) -> Iterator["Store"]:
        from service.control.wiring import open_config, open_store

        store = open_store(open_config(self._config))
        try:
            yield store
        finally:
            store.close()

    def _watch(self, store: "Store", writer: Child, daemon: Child, files_before: int) -> None:
        """Show the plans until the table is healthy.

        Ends after ``_WATCH_SECONDS`` too, but not before a plan has completed.
        """
        begun = time.monotonic()
        with self._report.live_view():
            while True:
                events = self._writer_events.read_new()
                plans = list(reversed(store.plans(table=settings.TABLE, limit=12)))
                scan = store.last_scan(settings.TABLE, ok=True)
                self._report.show_state(
                    ObservedState(plans=plans, scan=scan, writer=self._writer_events, writer_events=events)
                )
                done = [plan.finalized_at for plan in plans if plan.finalized_at and plan.state is PlanState.COMPLETED]
                waited = time.monotonic() - begun
                healthy = bool(scan and done and scan.taken_at > max(done) and _is_healthy(scan, files_before))
                if done and (healthy or waited > _WATCH_SECONDS):
                    return
                self._check_alive(writer, daemon)
                if waited > _TIMEOUT_SECONDS:
                    raise daemon.failure(f"completed no plan in {format_duration(waited)}")
                time.sleep(_POLL_SECONDS)

    def _clean(self, store: "Store", writer: Child, daemon: Child) -> Child:
        """Shorten the retention as an operator would, and wait until the superseded files are deleted."""
        show = self._report
        waiting = store.awaiting_deletion(self._table)
        rows, bytes_ = {due.row_id for due in waiting}, sum(due.version.bytes for due in waiting)
        there = self._count_on_disk(waiting)
        show.event(
            f"{plural(len(rows), 'superseded file')}, {format_bytes(bytes_)}, kept until their retention ends; "
            f"{there:,} of them on disk",
            "superseded",
            files=len(rows),
            bytes=bytes_,
            on_disk=there,
        )
        self._write_config(settings.SHORT_RETENTION)
        self._stop(daemon)
        daemon = self._serve()

        def deleted() -> bool:
            return rows.isdisjoint(due.row_id for due in store.awaiting_deletion(self._table))

        self._wait_for(deleted, "the cleaner to delete them", writer, daemon, show_writer=True)
        there = self._count_on_disk(waiting)
        show.event(
            f"the cleaner deleted {plural(len(rows), 'file')}, {format_bytes(bytes_)}; {there:,} of them on disk",
            "cleaned",
            files=len(rows),
            bytes=bytes_,
            on_disk=there,
        )
        return daemon

    def _count_on_disk(self, waiting: "Sequence[SupersededRecord]") -> int:
        return sum(Path(resolve_path(self._table.location, due.version.path)).exists() for due in waiting)

    # The end.

    def _compare(self) -> LedgerComparison:
        return compare(self._ledger.rows(), self._lake.read())

    def _print_next_steps(self, result: LedgerComparison) -> None:
        show, elapsed = self._report, format_duration(self._report.seconds)
        show.line()
        if not result.equal:
            show.line(f"The table differs from the ledger. Please report it with {self._directory} attached.")
        show.line(f"Done in {elapsed}. Next steps:")
        show.line(f"  cd {self._directory}")
        if shutil.which("lakefold") is None:
            show.line(f'  PATH="$PATH:{Path(sys.executable).parent}"')
        for command, what in (
            *(() if self._keep else self._lake.commands_after),
            (f"lakefold tables show {settings.TABLE}", "its facts, and file sizes at the last scan"),
            (f"lakefold tables explain {settings.TABLE}", "every file: planned, or why not"),
            ("lakefold plans list", "the plans; details: plans show PLAN"),
            (f"lakefold plans request {settings.TABLE} -n", "the exact plan that would be created now"),
            (f"lakefold verify {settings.TABLE} --rows", "compare storage with the table's commits"),
        ):
            show.line(f"  {command:<40} {what}")
        if self._keep:
            pids = " ".join(str(child.pid) for child in self._children)
            show.line(f"  {self._url + '/tables/' + settings.TABLE:<40} the page: sizes before and now, live plans")
            show.line(f"  {'lakefold tokens add me --scope write':<40} a token to request plans on the page")
            show.line(f"  {'curl ' + self._url + '/metrics':<40} metrics")
            show.line(f"Writer and daemon continue; stop them with: kill {pids}")
        else:
            show.line(f"  {'lakefold serve':<40} continue; the page is {self._url}/")
            show.line(f"Remove everything with: rm -r {self._directory}")
        show.finished(directory=self._directory, equal=result.equal, page=f"{self._url}/")

    # Processes.

    def _start(self, name: str, arguments: Sequence[str]) -> Child:
        child = Child(name, arguments, self._directory, keep=self._keep)
        self._children.append(child)
        return child

    def _stop(self, *children: Child) -> None:
        """Stop children; raises ChildFailed if one exits with an error."""
        for child in children:
            child.request_stop()
        for child in children:
            code = child.stop()
            self._children.remove(child)
            if code != 0:
                raise child.failure(f"exited {code} after the request to stop")
        self._writer_events.read_new()

    def _check_alive(self, *children: Child) -> None:
        for child in children:
            child.check_alive()

    def _wait_for(self, is_done: Callable[[], bool], awaited: str, *children: Child, show_writer: bool = False) -> None:
        """Wait until ``is_done()``; raises ChildFailed if a child ends, or if nothing happens for ten minutes."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            for event in self._writer_events.read_new():
                deadline = time.monotonic() + _TIMEOUT_SECONDS
                if show_writer:
                    self._report.show_writer_event(event)
            if is_done():
                return
            self._check_alive(*children)
            if time.monotonic() > deadline:
                raise children[-1].failure(
                    f"made no progress for {format_duration(_TIMEOUT_SECONDS)} while the demo waited for {awaited}"
                )
            time.sleep(_POLL_SECONDS / 2)
