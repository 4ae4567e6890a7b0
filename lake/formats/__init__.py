# SPDX-License-Identifier: Apache-2.0
"""Table formats: each package exports one ``TableFormat`` and is imported when it is first used."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from threading import Lock
from types import MappingProxyType
from typing import cast

from lake.capabilities import UsesSparkSettings
from lake.errors import Rejected
from lake.ports import TableFormat

FORMATS = tuple(sorted(found.name for found in iter_modules(__path__) if found.ispkg))
"""The names of all formats, which are those of their packages."""


_settings: Mapping[str, str] = MappingProxyType({})
#: the adapters that have received the settings, by name
_configured: dict[str, UsesSparkSettings] = {}
_lock = Lock()


def configure(settings: Mapping[str, str]) -> None:
    """Set Spark's settings for this process and pass them to formats with ``lake.capabilities.UsesSparkSettings``.

    They replace those of an earlier call. A format that is loaded later receives them when it is loaded.
    """
    global _settings
    with _lock:
        _settings = MappingProxyType(dict(settings))
        for adapter in _configured.values():
            adapter.configure(_settings)


def load_format(name: str) -> TableFormat:
    """Return the adapter of the format ``name``, with the settings in force. Raises Rejected for an unknown name."""
    if name not in FORMATS:
        raise Rejected(f"unknown table format {name!r}; known: {', '.join(FORMATS)}")
    adapter = cast(TableFormat, import_module(f"lake.formats.{name}").FORMAT)
    if isinstance(adapter, UsesSparkSettings):
        with _lock:
            if _configured.get(name) is not adapter:
                adapter.configure(_settings)
                _configured[name] = adapter
    return adapter


def load_formats() -> list[TableFormat]:
    """Return the adapters of all formats, by name."""
    return [load_format(name) for name in FORMATS]
