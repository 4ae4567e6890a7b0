# SPDX-License-Identifier: Apache-2.0
"""Builds the configuration, the store and the Spark session; commands and the daemon share it."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import lake.formats
from lake.errors import Transient, one_line
from lake.model import TableRef
from lake.redaction import add_secrets_of_settings
from lake.storage import hdfs, s3
from service.control.config.claim_limits import ConfiguredLimits
from service.control.config.loader import (
    Config,
    ConfigError,
    catalog_listers,
    load_config,
    load_config_for_source,
)
from service.control.config.table_settings import check_rules, global_settings
from service.control.store import Store, StoreError, StoreSettings

AnyStore = TypeVar("AnyStore", bound=Store)


def open_config(explicit_path: Path | None = None) -> Config:
    """Return the configuration and activate it in this process. Raises ConfigError, with the problems of rules too.

    From then on, its secrets are redacted from texts, and storage and catalogs are accessed with its settings.
    """
    try:
        return _activate(load_config(explicit_path))
    except ConfigError as error:
        if error.rest is None:
            raise
        try:
            check_rules(error.rest)
        except ConfigError as more:
            raise ConfigError(*error.problems, *more.problems) from error
        raise


def open_config_for_source(source: Mapping[str, str], spark: Mapping[str, str]) -> Config:
    """Return and activate the configuration of the environment, with only this ``source`` and these ``spark`` settings.

    Raises ConfigError.
    """
    return _activate(load_config_for_source(source, spark))


def _activate(config: Config) -> Config:
    add_secrets_of_settings(config.all_settings())
    s3.configure(config.spark)
    hdfs.configure(config.spark)
    lake.formats.configure(config.spark)
    return config


def store_settings(config: Config) -> StoreSettings:
    """Return the settings of the store. Raises ConfigError."""
    settings = global_settings(config)
    return StoreSettings(
        lease=settings.lease,
        max_attempts=settings.max_attempts,
        backoff=settings.backoff,
        backoff_max=settings.backoff_max,
        max_inflight_per_table=settings.max_inflight_per_table,
        limits=ConfiguredLimits(config),
        cores_per_plan=config.cost.cores_per_plan,
        resource_groups=frozenset(config.daemon.resource_groups) or None,
        notify_events=config.notify.selected_events,
        channel_events={channel.name: channel.selected_events for channel in config.notify.channels},
    )


def create_store(config: Config) -> Store:
    """Return the configured database, not yet connected.

    Raises StoreError for a bad URL, ConfigError for bad defaults.
    """
    return Store(config.database.url.get_secret_value(), store_settings(config))


def start_spark(config: Config, *tables: TableRef, active_formats: Callable[[], Collection[str]] = tuple) -> Any:
    """Return the process's Spark session, which can access all sources of ``config`` and ``tables``.

    The session is started for the formats of ``tables``, or else for ``session_formats`` of ``active_formats``. Raises
    Transient, Rejected if two formats can't share a session, and the errors of ``active_formats``.
    """
    from executors.spark import active_session, spark_session

    session = active_session()
    if session is not None:
        return session
    sources = [source.path for source in config.sources if source.path is not None]
    try:
        formats = sorted({table.format for table in tables}) or session_formats(config, active_formats())
    except StoreError as error:
        raise Transient(f"Spark can't start before the formats of the tables are known: {one_line(error)}") from error
    return spark_session(config.spark, [*sources, *(table.location for table in tables)], formats)


def session_formats(config: Config, active_formats: Collection[str]) -> list[str]:
    """Return the formats for which a process starts its session: formats that sources name, and ``active_formats``.

    A path, a metastore or a catalog without a format may have tables of several formats; for these, ``active_formats``
    has the formats of the tables to rewrite. Only a session finds the tables of a catalog database that no format lists
    itself, so such a catalog database without a format needs all formats.
    """
    named = {source.format for source in config.sources if source.format is not None}
    has_catalog_without_format = any(
        source.format is None and source.path is source.metastore is None and not catalog_listers(source)
        for source in config.sources
    )
    return sorted({*named, *active_formats, *(lake.formats.FORMATS if has_catalog_without_format else ())})


def open_store(config: Config) -> Store:
    """Return the configured database, its schema checked. Raises SchemaMismatch or DatabaseUnreachable."""
    return check_store_schema(create_store(config))


def check_store_schema(store: AnyStore) -> AnyStore:
    """Return ``store`` with its schema checked; close it if the check fails.

    Raises SchemaMismatch or DatabaseUnreachable.
    """
    try:
        store.check()
    except BaseException:
        store.close()
        raise
    return store
