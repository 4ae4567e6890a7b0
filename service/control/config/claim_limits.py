# SPDX-License-Identifier: Apache-2.0
"""The limits that plans have to meet when executors claim them, from the configuration."""

from functools import cache

from lake.formats import FORMATS
from lake.model import TableRef
from planner.budgets import TableLimits
from service.control.config.loader import Config
from service.control.config.table_settings import CLAIM_TIME_FIELDS, configure_table, global_budget, policy_field


class ConfiguredLimits:
    """The limits of a configuration. Raises ConfigError if a rule can't be used."""

    def __init__(self, config: Config) -> None:
        self.budget = global_budget(config)
        layers = [*config.default_layers, *map(config.rule_layer, range(len(config.table_rules)))]
        #: False if no rule limits a table; then the rules of each table need not be resolved
        self._has_table_limits = any(
            policy_field(key) in CLAIM_TIME_FIELDS for layer in layers for key in layer.settings
        )
        self.is_limited = self.budget.is_set or self._has_table_limits
        self._table_limits = cache(lambda name: _read_table_limits(config, name))

    def for_table(self, table: str) -> TableLimits:
        """Return the limits of the table of this name."""
        return self._table_limits(table) if self._has_table_limits else TableLimits()


def _read_table_limits(config: Config, name: str) -> TableLimits:
    # Rules match by name alone, so any format will do.
    return TableLimits.from_settings(
        configure_table(config, TableRef(name=name, format=FORMATS[0], location=f"/{name}")).policy
    )
