# SPDX-License-Identifier: Apache-2.0
"""Building the parts from a configuration: what commands and daemon both need, in one place."""

from planner.policy import SizingPolicy
from service.config import Config
from service.rules import default_policy
from service.store import Store, StoreSettings


def store_settings(policy: SizingPolicy) -> StoreSettings:
    """The knobs the store obeys; they hold for all tables, so they come from the defaults."""
    return StoreSettings(
        lease=policy.lease,
        max_attempts=policy.max_attempts,
        backoff=policy.backoff,
        backoff_max=policy.backoff_max,
        max_inflight_per_table=policy.max_inflight_per_table,
    )


def make_store(config: Config) -> Store:
    """The configured database, not yet looked at. Raises StoreError for a bad URL, ConfigError for bad defaults."""
    return Store(config.database.url.get_secret_value(), store_settings(default_policy(config)))


def open_store(config: Config) -> Store:
    """The configured database, its schema checked. Raises SchemaBehind or DatabaseUnreachable."""
    store = make_store(config)
    try:
        store.check()
    except BaseException:
        store.close()
        raise
    return store
