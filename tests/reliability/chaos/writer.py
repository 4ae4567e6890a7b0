# SPDX-License-Identifier: Apache-2.0
"""The Hudi writer of a chaos run, in a separate process: ``python -m chaos.writer --table DIR --ledger DIR …``.

It writes one step after another until it gets another order. A step is in the ledger before it is sent. It is confirmed
once the table's timeline has a completed commit that names it, even if the call failed or its process died.

Each line of its standard input is an order, executed between two steps: ``hold``, ``go``, ``savepoint``, ``restore``,
``remove_savepoint``, ``metadata``, ``steps N`` (N steps, then hold), ``end``. Each line of its standard output is an
event.
"""

import argparse
import json
import queue
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow.parquet as pq

from chaos.ledger import Ledger, State, Step
from chaos.steps import draw

_BATCH_KEY = "chaos.step"
_ATTEMPTS = 3
#: what Hudi 1.2.0 says of every write in a JVM whose first one compacted the metadata table; another JVM can go on
_BROKEN = "ArrayIndexOutOfBoundsException: Index 7 out of bounds for length 7"
#: the messages of Hudi for a restore to before the oldest base file of the metadata table, and to before its creation
_TOO_FAR_BACK = ("delete metadata table and retry", "Unable to find completion time for instant")
#: what a writer with the eager policy says where commits ended in another order than they began, as Hudi itself takes
#: them back in the order of their ends
_OTHER_ORDER = "please rollback greater commits first"

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Gone(Exception):
    """The writer's JVM is gone: nothing can be learned or done any more in this process."""


class Writer:
    """One process's writing. ``options`` are those of every write."""

    def __init__(self, session: Any, table: Path, ledger: Ledger, options: Mapping[str, str], size: int) -> None:
        self._session, self._table, self._ledger, self._options = session, table, ledger, dict(options)
        self._size = size
        self.state = State()

    def settle(self) -> None:
        """Confirm or withdraw what an earlier process left open."""
        for step in self._ledger.pending():
            if step.operation == "restore":
                # Its process ended in it: it is unknown which commits it has undone.
                self._restore_to(step.instant)
            landed = self._landed(step)
            say("settled", step=step.label, landed=landed)
            (self._ledger.confirm if landed else self._ledger.withdraw)(step)
        self.state = self._ledger.state()

    def send(self, step: Step) -> bool:
        """Try a step a few times; whether it landed."""
        rows = self._ledger.propose(step)
        landed = False
        for _ in range(_ATTEMPTS):
            started = time.monotonic()
            try:
                self._do(step, rows)
                error = ""
            except Exception as failure:  # py4j's types: judged by what the table says
                error = _cause(failure)
                if not error or _BROKEN in error:
                    raise Gone(error or str(failure)) from failure
            # A call that failed may have committed, and one that succeeded must have.
            landed = self._landed(step)
            say("tried", step=step.label, landed=landed, error=error, seconds=round(time.monotonic() - started, 2))
            if landed or not error:
                break
            time.sleep(0.5)
        if not landed and not error:
            raise AssertionError(f"{step.label} was written without an error and is not on the timeline")
        if landed:
            self._ledger.confirm(step)
            self.state.apply(step)
        else:
            self._ledger.withdraw(step)
        return landed

    def savepoint(self) -> None:
        """Save the newest commit of any process: its rows are those of the ledger."""
        instant = max(path.name.partition(".")[0].partition("_")[0] for path in self._completed())
        step = Step(number=self._ledger.next_number(), operation="savepoint", instant=instant)
        if instant not in self.state.savepoints:
            self._ledger.propose(step)
            # Without the instant Hudi takes the newest commit, which may be a compaction that has just ended.
            self._client().savepoint(instant, "chaos", "")
            self._kept(step)

    def restore(self) -> None:
        """Go back to the youngest savepoint; where there is none, make one for the next time."""
        if not self.state.savepoints:
            self.savepoint()
            return
        step = Step(number=self._ledger.next_number(), operation="restore", instant=max(self.state.savepoints))
        self._ledger.propose(step)
        say("restoring", step=step.label, instant=step.instant)
        self._restore_to(step.instant)
        self._kept(step)

    def metadata(self) -> None:
        """Have the metadata table from the next write on, or give it up: what an owner may change at any time."""
        key = "hoodie.metadata.enable"
        self._options[key] = "false" if self._options[key] == "true" else "true"
        say("metadata", enabled=self._options[key])

    def remove_savepoint(self) -> None:
        """Remove the oldest savepoint."""
        if self.state.savepoints:
            oldest = min(self.state.savepoints)
            step = Step(number=self._ledger.next_number(), operation="remove_savepoint", instant=oldest)
            self._ledger.propose(step)
            self._client().deleteSavepoint(oldest)
            self._kept(step)

    def _kept(self, step: Step) -> None:
        self._ledger.confirm(step)
        self.state.apply(step)
        say("maintained", step=step.label, instant=step.instant)

    def _do(self, step: Step, rows: Path) -> None:
        options = {**self._options, _BATCH_KEY: step.label, "hoodie.datasource.write.operation": step.operation}
        if step.operation == "delete_partition":
            paths = ",".join(f"dt={day}" for day in step.partitions)
            options["hoodie.datasource.write.partitions.to.delete"] = paths
        # Not Hudi's delete operation: one that lost a race keeps its heartbeat, and with it every plan of the table
        # waiting, for as long as this JVM lives (1.2.0).
        if step.operation == "delete":
            options["hoodie.datasource.write.operation"] = "upsert"
        deleted = str(step.operation == "delete").lower()
        frame = self._session.read.parquet(str(rows)).selectExpr(f"{deleted} AS _hoodie_is_deleted", "*").coalesce(1)
        frame.write.format("hudi").options(**options).mode("append").save(str(self._table))

    @property
    def _timeline(self) -> Path:
        base = self._table / ".hoodie"
        return base / "timeline" if (base / "timeline").is_dir() else base

    def _completed(self) -> list[Path]:
        return [
            path for kind in ("commit", "deltacommit", "replacecommit") for path in self._timeline.glob(f"*.{kind}")
        ]

    def _landed(self, step: Step) -> bool:
        """Does a completed commit name the step? lakefold may have archived it since, where its writer died."""
        if step.operation == "restore":
            return True  # done without an error
        if step.operation in ("savepoint", "remove_savepoint"):
            return any(self._timeline.glob(f"{step.instant}*.savepoint")) == (step.operation == "savepoint")
        # What is archived is in the archive before it leaves the timeline.
        return named_by(self._completed(), step.label) or archived(self._table, step.label)

    def _restore_to(self, instant: str) -> None:
        """Restore a savepoint, by another way where Hudi does not go the first one.

        A metadata table that does not reach back as far goes, as Hudi asks. The next write makes it anew; a restore
        that did so itself would make one that reaches back no further.
        """
        other: dict[str, str] = {}
        for left in (2, 1, 0):
            try:
                self._client(other).restoreToSavepoint(instant)
                return
            except Exception as failure:  # py4j's types
                cause = _cause(failure)
                if left == 0 or not (_OTHER_ORDER in cause or any(message in cause for message in _TOO_FAR_BACK)):
                    raise
            if _OTHER_ORDER in cause:
                other["hoodie.clean.failed.writes.policy"] = "LAZY"
            else:
                jvm, context = self._session._jvm, self._session.sparkContext._jsc
                engine = jvm.org.apache.hudi.client.common.HoodieSparkEngineContext(context)
                jvm.org.apache.hudi.metadata.HoodieTableMetadataUtil.deleteMetadataTable(self._meta(), engine, False)
                other["hoodie.metadata.enable"] = "false"

    def _meta(self) -> Any:
        jvm, context = self._session._jvm, self._session.sparkContext._jsc
        hudi = jvm.org.apache.hudi
        conf = hudi.hadoop.fs.HadoopFSUtils.getStorageConfWithCopy(context.hadoopConfiguration())
        return (
            hudi.common.table.HoodieTableMetaClient.builder().setConf(conf).setBasePath(f"file://{self._table}").build()
        )

    def _client(self, other: Mapping[str, str] = _NOTHING) -> Any:
        """Hudi's write client with the table's own settings and ``other``, for what the data source can't do."""
        jvm, context = self._session._jvm, self._session.sparkContext._jsc
        hudi, meta = jvm.org.apache.hudi, self._meta()
        # Hudi's data source does so at each write and its client never does: the restore of a process that had not
        # written yet had a local time on a timeline in UTC (Hudi 1.2.0), and hid what was there.
        zone = meta.getTableConfig().getTimelineTimezone()
        hudi.common.table.timeline.HoodieInstantTimeGenerator.setCommitTimeZone(zone)
        properties = jvm.java.util.HashMap()
        for key, value in {**self._options, **other}.items():
            properties.put(key, value)
        config = hudi.config.HoodieWriteConfig.newBuilder().withPath(f"file://{self._table}")
        config = config.withProps(meta.getTableConfig().getProps()).withProps(properties).build()
        engine = hudi.client.common.HoodieSparkEngineContext(context)
        return hudi.client.SparkRDDWriteClient(engine, config)


def named_by(files: Iterable[Path], label: str) -> bool:
    """Whether one of these files has the label; one that is archived meanwhile has it elsewhere."""
    for path in files:
        with suppress(FileNotFoundError):
            if label.encode() in path.read_bytes():
                return True
    return False


def archived(table: Path, label: str) -> bool:
    """Whether the archive of a table has a commit with the label; its logs are plain, its Parquet is not."""
    if named_by((table / ".hoodie" / "archived").glob(".commits_*"), label):
        return True
    for path in (table / ".hoodie" / "timeline" / "history").glob("*.parquet"):
        with suppress(FileNotFoundError):
            column = pq.read_table(path, columns=["metadata"])["metadata"].to_pylist()
            if any(label.encode() in (value or b"") for value in column):
                return True
    return False


def _cause(error: Exception) -> str:
    """The Java classes that a failure came from, with the deepest message; empty where no JVM answered."""
    cause, names, message = getattr(error, "java_exception", None) or getattr(error, "_origin", None), [], ""
    try:
        while cause is not None and len(names) < 20:
            names.append(str(cause.getClass().getSimpleName()))
            message = str(cause.getMessage()).partition("\n")[0]
            cause = cause.getCause()
    except Exception:
        return ""
    return f"{' <- '.join(names)}: {message}" if names else ""


def say(event: str, **facts: Any) -> None:
    """Print one event."""
    print(json.dumps({"event": event, "at": round(time.time(), 3), **facts}, ensure_ascii=False), flush=True)


def _listen(orders: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        orders.put(line.strip())
    orders.put("end")


def main(argv: Sequence[str] | None = None) -> int:
    """See the module; 1 when the JVM is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True)
    parser.add_argument("--options", type=json.loads, required=True)
    parser.add_argument("--spark", type=json.loads, required=True)
    arguments = parser.parse_args(argv)
    from executors.spark import spark_session

    session = spark_session(arguments.spark)
    orders: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    ledger = Ledger(arguments.ledger)
    writer = Writer(session, arguments.table, ledger, arguments.options, arguments.size)
    try:
        writer.settle()
        say("up", steps=len(ledger.confirmed()))
        _obey(writer, ledger, orders, arguments)
    except Gone as gone:
        say("gone", error=str(gone).partition("\n")[0])
        return 1
    session.stop()
    say("ended")
    return 0


def _obey(writer: Writer, ledger: Ledger, orders: "queue.Queue[str]", arguments: argparse.Namespace) -> None:
    left = 0
    while True:
        try:
            order = orders.get(timeout=arguments.pause if left else None)
        except queue.Empty:
            writer.send(draw(arguments.seed, ledger.next_number(), writer.state, arguments.size))
            left -= left > 0
            if left == 0:
                say("done")
            continue
        if order == "end":
            return
        if order.startswith("steps "):
            left = int(order.removeprefix("steps "))
            say("going")
        elif order == "go":
            left = -1
            say("going")
        elif order == "hold":
            left = 0
            say("holding")
        else:
            getattr(writer, order)()
            say("obeyed", order=order)


if __name__ == "__main__":
    sys.exit(main())
