# SPDX-License-Identifier: Apache-2.0
"""A Spark that writes to one Iceberg table and does to it what owners do, in a process of its own.

``python -m iceberg_chaos.writer SETTINGS FOLDER VERSION SEED START``. It goes on until there is a file ``stop`` in
FOLDER. ``acts`` in FOLDER is the ledger. SETTINGS is a file with the session's settings as JSON. The error of a failed
act is noted. The snapshot of the act may exist nevertheless.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hive_race.writer import Notes

from iceberg_chaos.ledger import ACT, Ledger

TABLE = "prod.lake.t"
DAYS = ("d0", "d1", "d2", "d3")
BUCKETS = "id_bucket_2"
EXPIRES_AFTER_SECONDS = 40
MAX_AGE_SECONDS, MIN_KEPT = 20, 3
"""``history.expire.max-snapshot-age-ms`` and ``history.expire.min-snapshots-to-keep`` of the table."""
_PROPERTIES = {
    "write.distribution-mode": "none",
    "history.expire.max-snapshot-age-ms": str(1000 * MAX_AGE_SECONDS),
    "history.expire.min-snapshots-to-keep": str(MIN_KEPT),
    "commit.manifest.min-count-to-merge": "6",
}
_MERGES = "commit.manifest-merge.enabled"
_MODES = ("copy-on-write", "merge-on-read", "merge-on-read")
_RETRY_SECONDS = 0.5
#: between two acts, on average: most plans are to find that none of their files has changed
_PAUSE_SECONDS = 1.5
_TAGS = 2


class Writer:
    """The table's owner. Each method named like an act makes at most one snapshot."""

    def __init__(self, session: Any, folder: Path, version: int, chance: random.Random) -> None:
        self.session, self.folder, self.version, self.chance = session, folder, version, chance
        self.notes = Notes(folder / "acts")
        self._number = max(Ledger(notes=folder / "acts", kept_seconds=0, kept_count=0).acts(), default=0)

    # Acts.

    def create(self) -> None:
        """Make the table."""
        self.session.sql("CREATE NAMESPACE IF NOT EXISTS prod.lake")
        properties = _PROPERTIES | {"format-version": str(self.version)}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        columns = "id bigint, write bigint, value string, dt string"
        self.session.sql(
            f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns}) USING iceberg PARTITIONED BY (dt) TBLPROPERTIES ({listed})"
        )

    def step(self) -> None:
        """One act; appends are the most frequent one, since most others cancel the plan that runs."""
        acts: list[tuple[int, Callable[[], None]]] = [
            (60, self.append),
            (5, self.update),
            (5, self.merge),
            (5, self.delete),
            (1, self.clear),
            (2, self.overwrite),
            (1, self.compact),
            (3, self.expire),
            (1, self.rollback),
            (2, self.tag),
            (3, self.branch),
            (1, self.schema),
            (1, self.spec),
            (2, self.merging),
        ]
        act = self.chance.choices([one for _, one in acts], [weight for weight, _ in acts])[0]
        act()

    def append(self, branch: str = "") -> None:
        """Append rows, to some partitions."""
        act = self._begin("append", **self._new_rows(self._days(1, 2)))
        self._try(act, lambda: self._rows(act).writeTo(TABLE + branch).append())

    def update(self) -> None:
        """Update rows by copy-on-write or merge-on-read."""
        self._set_mode("update")
        act = self._begin("update", **self._some_rows())
        number = act["number"]
        sets = f"write = {number}, value = concat('u', id, '-{number}')"
        self._try(act, lambda: self.session.sql(f"UPDATE {TABLE} SET {sets} WHERE {_condition(act)}"))

    def merge(self) -> None:
        """Upsert rows: some of the ids exist already."""
        self._set_mode("merge")
        low = 100 * self.chance.randint(max(1, self._number - 15), self._number)
        act = self._begin("merge", **self._new_rows(self._days(1, 2)) | {"ids": (low, low + 50)})
        number = act["number"]
        self._rows(act).createOrReplaceTempView("upserts")
        sets = f"t.write = {number}, t.value = concat('u', t.id, '-{number}')"
        text = (
            f"MERGE INTO {TABLE} t USING upserts s ON t.id = s.id "
            f"WHEN MATCHED THEN UPDATE SET {sets} WHEN NOT MATCHED THEN INSERT *"
        )
        self._try(act, lambda: self.session.sql(text))

    def delete(self) -> None:
        """Delete rows by copy-on-write or merge-on-read."""
        self._set_mode("delete")
        act = self._begin("delete", **self._some_rows())
        self._try(act, lambda: self.session.sql(f"DELETE FROM {TABLE} WHERE {_condition(act)}"))

    def clear(self) -> None:
        """Delete the files of a partition."""
        act = self._begin("clear", dts=self._days(1, 1))
        equal = self._iceberg().expressions.Expressions.equal("dt", act["dts"][0])
        update = self._java().newDelete().deleteFromRowFilter(equal).set(ACT, str(act["number"]))
        self._try(act, update.commit)

    def overwrite(self) -> None:
        """Overwrite a partition."""
        from pyspark.sql.functions import col

        act = self._begin("overwrite", **self._new_rows(self._days(1, 1)))
        self._try(act, lambda: self._rows(act).writeTo(TABLE).overwrite(col("dt") == act["dts"][0]))

    def compact(self) -> None:
        """Iceberg's own compaction of everything."""
        act = self._begin("compact")
        action = self._iceberg().spark.actions.SparkActions.get(self.session._jsparkSession)
        action = action.rewriteDataFiles(self._java()).option("rewrite-all", "true")
        self._try(act, lambda: action.snapshotProperty(ACT, str(act["number"])).execute())

    def expire(self) -> None:
        """Expire snapshots, and delete their files."""
        limit = time.time_ns() // 1_000_000 - 1000 * EXPIRES_AFTER_SECONDS
        update = self._java().expireSnapshots().expireOlderThan(limit).retainLast(self.chance.randint(2, 6))
        act = self._begin("expire", snapshots=[one.snapshotId() for one in update.apply()])
        self._try(act, update.commit)

    def rollback(self) -> None:
        """Make an earlier state the current one."""
        snapshots = self._ancestors()[1:6]
        if snapshots:
            to = self.chance.choice(snapshots)
            act = self._begin("rollback", to=to)
            self._try(act, lambda: self._java().manageSnapshots().rollbackTo(to).commit())

    def tag(self) -> None:
        """Name a snapshot, or take a name away."""
        java = self._java()
        tags = sorted(name for name, ref in java.refs().items() if ref.isTag())
        if len(tags) >= _TAGS:
            act = self._begin("untag")
            self._try(act, lambda: java.manageSnapshots().removeTag(tags[0]).commit())
        elif snapshots := self._ancestors():
            act = self._begin("tag", snapshot_id=self.chance.choice(snapshots))
            name = f"t{act['number']}"
            self._try(act, lambda: java.manageSnapshots().createTag(name, act["snapshot_id"]).commit())

    def branch(self) -> None:
        """Make a branch, write to it, publish it or remove it."""
        java = self._java()
        if "audit" not in set(java.refs()):
            act = self._begin("branch")
            self._try(act, lambda: java.manageSnapshots().createBranch("audit", self._ancestors()[0]).commit())
        elif self.chance.random() < 0.5:
            self.append(".branch_audit")
        else:
            act = self._begin("forward")
            if self.chance.random() < 0.5:
                move = java.manageSnapshots().fastForwardBranch("main", "audit")
            else:
                move = java.manageSnapshots().replaceBranch("main", java.refs()["audit"].snapshotId())
            self._try(act, move.commit)
            act = self._begin("unbranch")
            self._try(act, lambda: self._java().manageSnapshots().removeBranch("audit").commit())

    def schema(self) -> None:
        """Add, rename or drop a column."""
        columns = self._columns()
        if len(columns) < 2:
            act = self._begin("add column")
            self._try(act, lambda: self.session.sql(f"ALTER TABLE {TABLE} ADD COLUMN c{act['number']} string"))
        elif self.chance.random() < 0.5:
            name = columns[0]
            act, other = self._begin("rename column"), ("r" if name[0] == "c" else "c") + name[1:]
            self._try(act, lambda: self.session.sql(f"ALTER TABLE {TABLE} RENAME COLUMN {name} TO {other}"))
        else:
            act = self._begin("drop column")
            self._try(act, lambda: self.session.sql(f"ALTER TABLE {TABLE} DROP COLUMN {columns[0]}"))

    def spec(self) -> None:
        """Partition by a bucket of the id besides, or no longer."""
        java, terms = self._java(), self._iceberg().expressions.Expressions
        names = {one.name() for one in java.spec().fields()}
        act, update = self._begin("spec"), java.updateSpec()
        bucket = terms.bucket("id", 2)
        update = update.removeField(BUCKETS) if BUCKETS in names else update.addField(BUCKETS, bucket)
        self._try(act, update.commit)

    def merging(self) -> None:
        """Let appends merge manifests, or no longer."""
        java = self._java()
        on = dict(java.properties()).get(_MERGES, "true") == "true"
        act = self._begin("merging")
        self._try(act, lambda: java.updateProperties().set(_MERGES, str(not on).lower()).commit())

    # Helpers.

    def _begin(self, what: str, **details: Any) -> dict[str, Any]:
        self._number += 1
        act = {"number": self._number, "act": what, "began": time.time(), **details}
        self.notes.add(**act)
        self._mark(str(self._number))
        return act

    def _mark(self, number: str) -> None:
        """Have the snapshots of this thread name the act, as ``CommitMetadata.withCommitProperties`` does."""
        jvm = self.session._jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        field = loader.loadClass("org.apache.iceberg.spark.CommitMetadata").getDeclaredField("COMMIT_PROPERTIES")
        field.setAccessible(True)
        properties = jvm.java.util.HashMap()
        properties.put(ACT, number)
        field.get(None).set(properties)

    def _try(self, act: dict[str, Any], do: Callable[[], object]) -> None:
        """Do it, and note the snapshot that it made, or the error."""
        number = act["number"]
        try:
            do()
            self.notes.add(number=number, ended=time.time(), snapshot=self._snapshot_of(number))
        except Exception as error:
            self.notes.add(number=number, failed=time.time(), error=str(error)[:1000])
            time.sleep(_RETRY_SECONDS)

    def _snapshot_of(self, number: int) -> int | None:
        for one in self._java().snapshots():
            if dict(one.summary()).get(ACT) == str(number):
                return int(one.snapshotId())
        return None

    def _iceberg(self) -> Any:
        return self.session._jvm.org.apache.iceberg

    def _java(self) -> Any:
        return self._iceberg().spark.Spark3Util.loadIcebergTable(self.session._jsparkSession, TABLE)

    def _ancestors(self) -> list[int]:
        """The snapshots of ``main`` that the table has, newest first."""
        java = self._java()
        found: list[int] = []
        snapshot = java.currentSnapshot()
        while snapshot is not None:
            found.append(int(snapshot.snapshotId()))
            parent = snapshot.parentId()
            snapshot = None if parent is None else java.snapshot(parent)
        return found

    def _columns(self) -> list[str]:
        return [one.name() for one in self._java().schema().columns() if one.name()[1:].isdigit()]

    def _set_mode(self, what: str) -> None:
        mode, key = self.chance.choice(_MODES), f"write.{what}.mode"
        java = self._java()
        if dict(java.properties()).get(key) != mode:
            java.updateProperties().set(key, mode).commit()

    def _days(self, fewest: int, most: int) -> list[str]:
        return sorted(self.chance.sample(DAYS, self.chance.randint(fewest, most)))

    def _new_rows(self, days: Sequence[str]) -> dict[str, Any]:
        low = (self._number + 1) * 100
        columns = [int(name[1:]) for name in self._columns()]
        return {"ids": (low, low + self.chance.randint(8, 40)), "dts": list(days), "columns": columns}

    def _some_rows(self) -> dict[str, Any]:
        divisor = self.chance.choice((3, 5, 7, 11))
        return {"divisor": divisor, "rest": self.chance.randrange(divisor), "dts": self._days(1, 2)}

    def _rows(self, act: dict[str, Any]) -> Any:
        """New rows with the columns that the table had when the act began, in the table's order."""
        number, (low, high) = act["number"], act["ids"]
        days = ", ".join(f"'{day}'" for day in act["dts"])
        made = {
            "id": "id",
            "write": f"CAST({number} AS bigint)",
            "value": f"concat('v', id, '-{number}')",
            "dt": f"element_at(array({days}), CAST(id % {len(act['dts'])} AS int) + 1)",
        }
        for name in self._columns():
            made[name] = f"IF(id % 3 = 0, NULL, concat('x{name[1:]}-{number}-', id))"
        names = [one.name() for one in self._java().schema().columns()]
        return self.session.range(low, high, 1, 1).selectExpr(*(f"{made[name]} AS {name}" for name in names))


def _condition(act: dict[str, Any]) -> str:
    days = ", ".join(f"'{day}'" for day in act["dts"])
    return f"id % {act['divisor']} = {act['rest']} AND dt IN ({days})"


def main(settings: str, folder: str, version: str, seed: str, start: str) -> None:
    """Make the table, then write and act until told to stop."""
    from pyspark.sql import SparkSession

    home = Path(folder)
    builder = SparkSession.builder.master("local[1]")
    for key, value in json.loads(Path(settings).read_text()).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    writer = Writer(session, home, int(version), random.Random(f"{seed}/{start}"))
    if start == "1":
        writer.create()
        for _ in range(3):
            writer.append()
    print("ready", flush=True)
    while not (home / "stop").exists():
        try:
            writer.step()
        except Exception as error:  # the catalog is away before an act has begun
            print(f"{type(error).__name__}: {str(error)[:2000]}", flush=True)
            time.sleep(_RETRY_SECONDS)
        time.sleep(writer.chance.expovariate(1 / _PAUSE_SECONDS))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
