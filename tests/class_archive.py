# SPDX-License-Identifier: Apache-2.0
"""Writes an archive of the classes that Spark and Hudi load; with it the tests' JVMs start in two thirds of the time.

Run by ``make test`` once a clone. It is a matter of speed only: a JVM that can't use the archive does without. Where
none can be written an empty file stands for it, so that the next run does not try again.
"""

import os
import sys
import tempfile
from pathlib import Path

from support import CLASS_ARCHIVE, jvm_options


def main() -> None:
    """See the module."""
    CLASS_ARCHIVE.unlink(missing_ok=True)
    try:
        write_archive()
    except Exception as error:  # whatever is wrong with this machine's Java, the tests are there to say it
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        print(f"no class archive, the tests' JVMs start more slowly: {reason}", file=sys.stderr)
        CLASS_ARCHIVE.touch()


def write_archive() -> None:
    """Do what a test's JVM does, one of each, and let the JVM write down at its end what it has loaded."""
    sys.path.insert(0, str(Path(__file__).parent / "formats"))
    from hudi_tables import METADATA, rows, write
    from hudi_writing import Table

    from executors.spark import spark_session

    with tempfile.TemporaryDirectory(dir=CLASS_ARCHIVE.parent) as home:
        made = Path(home) / "classes.jsa"
        os.environ["SPARK_SUBMIT_OPTS"] = f"{jvm_options()} -XX:ArchiveClassesAtExit={made}"
        spark = spark_session({"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"})
        jvm = spark.sparkContext._gateway.proc
        trips = Table(spark, Path(home) / "trips")
        for commit in range(2):
            frame = rows(spark, commit * 10, commit * 10 + 10).coalesce(1)
            write(frame, trips.base, merge_on_read=True, options=METADATA)
        trips.upsert(0, 20, 1)
        trips.run(trips.plan())
        trips.rows()
        spark.stop()
        jvm.stdin.close()
        jvm.wait(timeout=120)
        made.rename(CLASS_ARCHIVE)


if __name__ == "__main__":
    main()
