# SPDX-License-Identifier: Apache-2.0
"""Java's classes by name, each looked up once a JVM.

py4j asks the JVM for each part of a name every time (``org``, ``org.apache``, …), and Java looks into every jar before
it knows that there is no class of that name.
"""

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CachedPackages:
    """py4j's view of a JVM, or of a package there, which remembers what it was asked for."""

    def __init__(self, view: Any) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        from py4j.java_gateway import JavaPackage

        found = getattr(self._view, name)
        if isinstance(found, JavaPackage):
            found = CachedPackages(found)
        setattr(self, name, found)
        return found


_jvm_cache: "WeakKeyDictionary[Any, CachedPackages]" = WeakKeyDictionary()
_lock = threading.Lock()


def cached_jvm(spark: "SparkSession") -> Any:
    """What ``spark._jvm`` is, but quicker. The same for all sessions of a JVM."""
    gateway = spark.sparkContext._gateway
    with _lock:
        if gateway not in _jvm_cache:
            _jvm_cache[gateway] = CachedPackages(spark._jvm)
        return _jvm_cache[gateway]
