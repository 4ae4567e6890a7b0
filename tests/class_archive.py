# SPDX-License-Identifier: Apache-2.0
"""Makes the tests' JVMs quicker: ``QuickLocalFiles``, and an archive of the classes that Spark and Hudi load.

With the archive they start in two thirds of the time. Run by ``make test`` once a clone. It is a matter of speed only:
a JVM that can't use the one or the other does without. Where no archive can be written an empty file stands for it, so
that the next run does not try again.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark
from support import CLASS_ARCHIVE, LOCAL_FILES, jvm_options

SOURCE = Path(__file__).with_name("QuickLocalFiles.java")
#: what makes Hadoop take it for every path of this machine
CORE_SITE = """<configuration>
<property><name>fs.file.impl</name><value>lakefold.tests.QuickLocalFiles</value></property>
</configuration>
"""


def main() -> None:
    """See the module."""
    LOCAL_FILES.unlink(missing_ok=True)
    if shutil.which("javac"):
        compile_local_files()
    CLASS_ARCHIVE.unlink(missing_ok=True)
    try:
        write_archive()
    except Exception as error:  # whatever is wrong with this machine's Java, the tests are there to say it
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        print(f"no class archive, the tests' JVMs start more slowly: {reason}", file=sys.stderr)
        CLASS_ARCHIVE.touch()


def compile_local_files() -> None:
    """Write the jar; a Java without a compiler, or of before 17, does without."""
    with tempfile.TemporaryDirectory(dir=LOCAL_FILES.parent) as home:
        jars = Path(pyspark.__file__).parent / "jars" / "*"
        command = ["javac", "--release", "17", "-cp", str(jars), "-d", f"{home}/classes", str(SOURCE)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return
        made = Path(home) / "made.jar"
        with zipfile.ZipFile(made, "w") as jar:
            jar.writestr("core-site.xml", CORE_SITE)
            for path in sorted(Path(home, "classes").rglob("*.class")):
                jar.write(path, path.relative_to(f"{home}/classes"))
        made.rename(LOCAL_FILES)


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
