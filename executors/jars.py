# SPDX-License-Identifier: Apache-2.0
"""The jars of table formats: a cache on disk that Spark fills through Ivy once, and what a start takes from it.

Two processes that fill Ivy's cache at once find each other's half-written files and give up, so one fills it at a
time. A cache that has everything is only read: no start waits for a lock then, whoever holds it.
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
#: what Ivy's answer depends on
_RESOLUTION_SETTINGS = (PACKAGES, "spark.jars.excludes", "spark.jars.repositories", "spark.jars.ivySettings")
#: how long one process lets another one fill a cache before it fills the next one
LOCK_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.2
_LOCK = "lakefold.lock"


def cache_dir() -> Path:
    """Where table-format jars are kept: ``$LAKEFOLD_CACHE`` or ``lakefold`` in the user's cache directory."""
    chosen = os.environ.get("LAKEFOLD_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakefold"


@contextmanager
def settings_with_jars(conf: Mapping[str, str]) -> Iterator[tuple[dict[str, str], Callable[[str], None]]]:
    """Settings with which a session started inside gets the packages of ``conf``, and where to tell its jars.

    What a cache has completely is named file by file. Else the session is to fetch the rest, alone with the cache; it
    tells the ``spark.jars`` that it found, so that the next start need not. Raises Transient with who fills the cache
    where nobody gets done.
    """
    if not conf.get(PACKAGES):
        yield dict(conf), lambda jars: None
        return
    ivy = Path(conf[IVY])
    places = (ivy, ivy.with_name(f"{ivy.name}.2"))
    busy: list[str] = []
    for place in places:
        with _exclusive_cache(place, lambda: _cached_jars(places, conf), busy) as alone:
            if jars := _cached_jars(places, conf):
                yield _with_jars(conf, jars), lambda jars: None
                return
            if alone:
                yield {**conf, IVY: str(place)}, partial(_write_manifest, place, conf)
                return
    raise Transient(f"{PACKAGES} = {conf[PACKAGES]} can't be fetched: {'; '.join(busy)}")


@contextmanager
def _exclusive_cache(place: Path, needless: Callable[[], object], busy: list[str]) -> Iterator[bool]:
    """Be the one process that fills ``place``; False where that is ``needless``, or not to be had with patience.

    Who has it is then added to ``busy``.
    """
    if needless():
        yield False
        return
    place.mkdir(parents=True, exist_ok=True)
    with (place / _LOCK).open("a+") as file:
        deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
        while not _try_lock(file.fileno()):
            if needless():
                yield False
                return
            if time.monotonic() > deadline:
                file.seek(0)
                holder = file.read().strip() or "a process that does not say who it is"
                busy.append(f"{place} is being filled by {holder}, which did not end within {LOCK_TIMEOUT_SECONDS:g} s")
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
    """``conf`` with the files of its packages in the packages' place."""
    own = [conf[_JARS]] if conf.get(_JARS) else []
    kept = {key: value for key, value in conf.items() if key not in _RESOLUTION_SETTINGS}
    return {**kept, _JARS: ",".join([*own, *map(str, jars)])}


def _manifest_path(place: Path, conf: Mapping[str, str]) -> Path:
    asked = json.dumps([conf.get(key, "") for key in _RESOLUTION_SETTINGS])
    return place / f"lakefold-{hashlib.sha256(asked.encode()).hexdigest()[:16]}.json"


def _cached_jars(places: Sequence[Path], conf: Mapping[str, str]) -> list[Path]:
    """The jars of the packages of ``conf`` in the first of ``places`` that is known to have them all; none without."""
    for place in places:
        with suppress(OSError, ValueError):
            names = json.loads(_manifest_path(place, conf).read_text())
            found = [(place / "jars" / name, size) for name, size in names]
            if all(path.stat().st_size == size for path, size in found):
                return [path for path, _ in found]
    return []


def _write_manifest(place: Path, conf: Mapping[str, str], found: str) -> None:
    """Remember which files Spark resolved the packages of ``conf`` to; versions that change are asked for each time."""
    if "SNAPSHOT" in conf[PACKAGES] or "latest." in conf[PACKAGES]:
        return
    paths = [Path(jar.removeprefix("file:")) for jar in found.split(",")]
    jars = [path for path in paths if path.parent.resolve() == (place / "jars").resolve()]
    if not jars:
        return
    target = _manifest_path(place, conf)
    scratch = target.with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # a cache that can't be written to is asked again by the next start
        scratch.write_text(json.dumps([[path.name, path.stat().st_size] for path in jars]))
        scratch.replace(target)
