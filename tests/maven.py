# SPDX-License-Identifier: Apache-2.0
"""Jars for servers of the tests: fetched from Maven by PySpark's Ivy once for all clones, or taken from PySpark."""

import fcntl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

import pyspark
from support import needs_server

from executors.jars import cache_dir
from executors.spark import java_home

_PYSPARK = Path(pyspark.__file__).parent / "jars"
_OF_PYSPARK = (
    *("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "jcl-over-slf4j"),
    *("log4j-1.2-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl"),
)


class Artifact(NamedTuple):
    """One artifact of a Maven repository, without what it depends on; the classifier '' is that of its main jar."""

    group: str
    name: str
    version: str
    classifiers: tuple[str, ...] = ("",)


def class_path(name: str, artifacts: Sequence[Artifact]) -> str:
    """The class path of a server: these artifacts, and Hadoop and logging of PySpark.

    ``name`` is that of the directory of the jars in the user's cache. Skips the test if they can't be fetched.
    """
    own = [next(iter(_PYSPARK.glob(f"{jar}-[0-9]*.jar"))) for jar in _OF_PYSPARK]
    return ":".join([f"{fetched(name, artifacts)}/*", *map(str, own)])


def fetched(name: str, artifacts: Sequence[Artifact]) -> Path:
    """The directory ``name`` with the jars of these artifacts. Skips the test if they can't be fetched."""
    place = cache_dir() / name
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if all((place / jar).exists() for one in artifacts for jar in _jar_names(one)):
            return place
        (place / "ivy.xml").write_text(_ivy_module(artifacts))
        (ivy,) = _PYSPARK.glob("ivy-*.jar")
        done = subprocess.run(
            [
                *(str(java_home() / "bin" / "java"), "-jar", str(ivy), "-cache", str(place / "ivy")),
                *("-ivy", str(place / "ivy.xml"), "-types", "jar", "bundle"),
                *("-retrieve", f"{place}/[artifact]-[revision](-[classifier]).[ext]"),
            ],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            needs_server(f"the jars of {name} could not be fetched from Maven: {done.stdout.strip()[-300:]}")
    return place


def _jar_names(one: Artifact) -> list[str]:
    return [f"{one.name}-{one.version}{'-' if kind else ''}{kind}.jar" for kind in one.classifiers]


def _ivy_module(artifacts: Sequence[Artifact]) -> str:
    wanted = ""
    for one in artifacts:
        files = "".join(
            f"<artifact name={quoteattr(one.name)} type='jar' ext='jar'"
            + (f" e:classifier={quoteattr(kind)}/>" if kind else "/>")
            for kind in one.classifiers
        )
        where = f"org={quoteattr(one.group)} name={quoteattr(one.name)} rev={quoteattr(one.version)}"
        wanted += f"<dependency {where} transitive='false'>{files}</dependency>"
    return (
        "<ivy-module version='2.0' xmlns:e='http://ant.apache.org/ivy/extra'><info organisation='lakefold'"
        " module='tests'/><configurations><conf name='default'/></configurations>"
        f"<dependencies defaultconf='default->master,default'>{wanted}</dependencies></ivy-module>"
    )
