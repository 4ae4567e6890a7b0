# SPDX-License-Identifier: Apache-2.0
"""The tables of all namespaces of a catalog that PyIceberg opens."""

from collections.abc import Iterator
from typing import Any


def table_names(catalog: Any) -> list[str]:
    """Return the tables of PyIceberg's ``catalog``, each as ``namespace.table``, sorted.

    A nested namespace has dots in its name. Errors of the catalog pass through.
    """
    return sorted(".".join(table) for namespace in _namespaces(catalog, ()) for table in catalog.list_tables(namespace))


def _namespaces(catalog: Any, parent: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for namespace in catalog.list_namespaces(parent):
        yield namespace
        yield from _namespaces(catalog, namespace)
