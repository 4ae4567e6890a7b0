# SPDX-License-Identifier: Apache-2.0
"""Java's classes by name, each looked up once per JVM.

py4j queries the JVM for each part of a name every time (``org``, ``org.apache``, …). Java then searches every jar
before it finds that no class has that name.
"""

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CachedPackages:
    """py4j's view of a JVM, or of a package in it, which caches its attributes."""

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
    """Return ``spark._jvm`` with a cache, shared by all sessions of a JVM."""
    gateway = spark.sparkContext._gateway
    with _lock:
        if gateway not in _jvm_cache:
            _jvm_cache[gateway] = CachedPackages(spark._jvm)
        return _jvm_cache[gateway]
