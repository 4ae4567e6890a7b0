# SPDX-License-Identifier: Apache-2.0
"""Hudi's lock providers by a table's ``write_options``: the provider, its required settings, the location of its lock.

The settings themselves are passed to Hudi unchanged.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lake.model import Concurrency, TableRef
from lake.storage.locations import canonical_location, is_local

LOCK_PROVIDER = "hoodie.write.lock.provider"
LOCK_DIRECTORY = "hoodie.write.lock.filesystem.path"
_ZOOKEEPER = "hoodie.write.lock.zookeeper."
_METASTORE = "hoodie.write.lock.hivemetastore."
_LOCK_FILE = "FileSystemBasedLockProvider"


@dataclass(frozen=True, slots=True)
class _Provider:
    """A lock provider: its required settings, and how a held lock is freed; ``{key}`` stands for a setting's value."""

    required: tuple[str, ...]
    description: str


_PROVIDERS: Mapping[str, _Provider] = {
    _LOCK_FILE: _Provider((), f"it is the file lock in {{{LOCK_DIRECTORY}}}"),
    "ZookeeperBasedLockProvider": _Provider(
        (f"{_ZOOKEEPER}url", f"{_ZOOKEEPER}base_path", f"{_ZOOKEEPER}lock_key"),
        f"it is {{{_ZOOKEEPER}base_path}}/{{{_ZOOKEEPER}lock_key}} on ZooKeeper {{{_ZOOKEEPER}url}}, which frees it "
        "when the session of a dead holder ends",
    ),
    "ZookeeperBasedImplicitBasePathLockProvider": _Provider(
        (f"{_ZOOKEEPER}url",),
        f"it is on ZooKeeper {{{_ZOOKEEPER}url}}, which frees it when the session of a dead holder ends",
    ),
    "HiveMetastoreBasedLockProvider": _Provider(
        (f"{_METASTORE}database", f"{_METASTORE}table"),
        f"it is the metastore's lock of {{{_METASTORE}database}}.{{{_METASTORE}table}}, which frees it when a dead "
        "holder's heartbeat is overdue; SHOW LOCKS names the holder",
    ),
    "StorageBasedLockProvider": _Provider(
        (), "it is .hoodie/.locks/table_lock.json in the table, which expires when its holder is dead"
    ),
}


def lock_provider_name(table: TableRef) -> str:
    """Return the simple class name of the provider in the table's options, '' if the option is unset."""
    return table.write_options.get(LOCK_PROVIDER, "").rpartition(".")[2]


def has_lock_file_provider(table: TableRef) -> bool:
    """True if the table's lock is Hudi's lock file."""
    return table.concurrency is Concurrency.OCC and lock_provider_name(table) == _LOCK_FILE


def possible_lock_file(table: TableRef) -> str | None:
    """Return the path of Hudi's lock file as if the table's provider used one; None if path or table isn't local."""
    directory = table.write_options.get(LOCK_DIRECTORY) or f"{table.location}/.hoodie"
    if is_local(table.location) and is_local(directory):
        return f"{canonical_location(directory)}/lock"
    return None


def lock_file_path(table: TableRef) -> str | None:
    """Return the path of the lock file; None if the table has another kind of lock, or the file isn't local."""
    return possible_lock_file(table) if has_lock_file_provider(table) else None


def missing_settings(table: TableRef) -> Iterator[str]:
    """Yield the missing settings that the provider of ``table`` requires; nothing for providers not known here."""
    known = _PROVIDERS.get(lock_provider_name(table))
    if known is not None:
        yield from (key for key in known.required if not table.write_options.get(key))


def describe_provider_lock(table: TableRef) -> str:
    """Describe where the lock is, and how the lock of a dead holder is freed."""
    known = _PROVIDERS.get(lock_provider_name(table))
    if known is None:
        return f"its provider is {table.write_options.get(LOCK_PROVIDER)}"
    note = known.description
    for key, value in table.write_options.items():
        note = note.replace(f"{{{key}}}", value)
    return note
