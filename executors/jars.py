# SPDX-License-Identifier: Apache-2.0
"""The jars of table formats: a cache on disk that Spark fills through Ivy once, and from which later starts read.

Two processes that fill Ivy's cache at once find each other's half-written files and give up, so a lock admits one at a
time. A complete cache is only read: a start then waits for no lock.
"""

import fcntl
import hashlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from lake.errors import Transient

log = logging.getLogger(__name__)

PACKAGES, IVY = "spark.jars.packages", "spark.jars.ivy"
_JARS = "spark.jars"
#: the settings that Ivy's result depends on
_RESOLUTION_SETTINGS = (PACKAGES, "spark.jars.excludes", "spark.jars.repositories", "spark.jars.ivySettings")
#: how long a process waits for another process that fills a cache, before it tries the next cache
LOCK_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.2
_LOCK = "lakefold.lock"


def cache_dir() -> Path:
    """Return the directory of table-format jars: ``$LAKEFOLD_CACHE`` or ``lakefold`` in the user's cache directory."""
    chosen = os.environ.get("LAKEFOLD_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakefold"


@contextmanager
def settings_with_jars(conf: Mapping[str, str]) -> Iterator[tuple[dict[str, str], Callable[[str], None]]]:
    """Yield settings with which a session gets the packages of ``conf``, and a callback for the session's jars.

    If a cache has all packages, the settings name its files. Otherwise the session fetches the rest, with exclusive
    use of the cache, and passes its ``spark.jars`` to the callback, so that the next start need not fetch. Raises
    Transient with the processes that fill the caches if none of them ends in time.
    """
    if not conf.get(PACKAGES):
        yield dict(conf), lambda jars: None
        return
    ivy = Path(conf[IVY])
    caches = (ivy, ivy.with_name(f"{ivy.name}.2"))
    busy: list[str] = []
    for cache in caches:
        with _exclusive_cache(cache, lambda: _cached_jars(caches, conf), busy) as is_exclusive:
            if jars := _cached_jars(caches, conf):
                yield _with_jars(conf, jars), lambda jars: None
                return
            if is_exclusive:
                yield {**conf, IVY: str(cache)}, partial(_write_manifest, cache, conf)
                return
    raise Transient(f"{PACKAGES} = {conf[PACKAGES]} can't be fetched: {'; '.join(busy)}")


@contextmanager
def _exclusive_cache(cache: Path, is_needless: Callable[[], object], busy: list[str]) -> Iterator[bool]:
    """Yield True with exclusive use of ``cache``. Yields False if ``is_needless`` returns true, or after a timeout.

    After a timeout the process that fills the cache is added to ``busy``.
    """
    if is_needless():
        yield False
        return
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / _LOCK).open("a+") as file:
        deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
        while not _try_lock(file.fileno()):
            if is_needless():
                yield False
                return
            if time.monotonic() > deadline:
                file.seek(0)
                holder = file.read().strip() or "an unknown process"
                busy.append(f"{cache} is being filled by {holder}, which did not end within {LOCK_TIMEOUT_SECONDS:g} s")
                log.warning("%s", busy[-1])
                yield False
                return
            time.sleep(_POLL_SECONDS)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n")
        file.flush()
        yield True


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process; the JVM does not inherit it
    except BlockingIOError:
        return False
    return True


def _with_jars(conf: Mapping[str, str], jars: Sequence[Path]) -> dict[str, str]:
    """Return ``conf`` with the files of its packages in place of the packages."""
    own = [conf[_JARS]] if conf.get(_JARS) else []
    kept = {key: value for key, value in conf.items() if key not in _RESOLUTION_SETTINGS}
    return {**kept, _JARS: ",".join([*own, *map(str, jars)])}


def _manifest_path(cache: Path, conf: Mapping[str, str]) -> Path:
    settings = json.dumps([conf.get(key, "") for key in _RESOLUTION_SETTINGS])
    return cache / f"lakefold-{hashlib.sha256(settings.encode()).hexdigest()[:16]}.json"


def _cached_jars(caches: Sequence[Path], conf: Mapping[str, str]) -> list[Path]:
    """Return the jars of ``conf``'s packages in the first of ``caches`` that has all of them; else an empty list."""
    for cache in caches:
        with suppress(OSError, ValueError):
            names = json.loads(_manifest_path(cache, conf).read_text())
            found = [(cache / "jars" / name, size) for name, size in names]
            if all(path.stat().st_size == size for path, size in found):
                return [path for path, _ in found]
    return []


def _write_manifest(cache: Path, conf: Mapping[str, str], found: str) -> None:
    """Record which files Spark resolved the packages of ``conf`` to, unless their versions can change."""
    if "SNAPSHOT" in conf[PACKAGES] or "latest." in conf[PACKAGES]:
        return
    paths = [Path(jar.removeprefix("file:")) for jar in found.split(",")]
    jars = [path for path in paths if path.parent.resolve() == (cache / "jars").resolve()]
    if not jars:
        return
    target = _manifest_path(cache, conf)
    scratch = target.with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # the next start fetches again if the cache can't be written
        scratch.write_text(json.dumps([[path.name, path.stat().st_size] for path in jars]))
        scratch.replace(target)
