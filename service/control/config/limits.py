# SPDX-License-Identifier: Apache-2.0
"""What plans are held to when executors take them, as the configuration says."""

from functools import cache

from lake.formats import FORMATS
from lake.model import TableRef
from planner.budgets import TableLimits
from service.control.config.loader import Config
from service.control.config.tables import CLAIM_TIME_FIELDS, configure_table, global_budget, policy_field


class ConfiguredLimits:
    """The limits of a configuration. Raises ConfigError where a rule can't be used."""

    def __init__(self, config: Config) -> None:
        self.budget = global_budget(config)
        layers = [*config.default_layers, *map(config.rule_layer, range(len(config.table_rules)))]
        #: a lake of ten thousand tables without any such setting needs no look at each
        self._has_table_limits = any(
            policy_field(key) in CLAIM_TIME_FIELDS for layer in layers for key in layer.settings
        )
        self.is_limited = self.budget.is_set or self._has_table_limits
        self._table_limits = cache(lambda name: _read_table_limits(config, name))

    def for_table(self, table: str) -> TableLimits:
        """The limits of the table of this name."""
        return self._table_limits(table) if self._has_table_limits else TableLimits()


def _read_table_limits(config: Config, name: str) -> TableLimits:
    # No rule asks for the format.
    return TableLimits.from_settings(
        configure_table(config, TableRef(name=name, format=FORMATS[0], location=f"/{name}")).policy
    )
