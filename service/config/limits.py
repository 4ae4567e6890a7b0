# SPDX-License-Identifier: Apache-2.0
"""What plans are held to when executors take them, as the configuration says."""

from functools import cache

from lake.formats import FORMATS
from lake.model import TableRef
from planner.budgets import TableLimits
from service.config.loader import Config
from service.config.tables import WHEN_TAKEN, budget_of, configure, knob_of


class ConfiguredLimits:
    """The limits of a configuration. Raises ConfigError where a rule can't be used."""

    def __init__(self, config: Config) -> None:
        self.budget = budget_of(config)
        layers = [*config.default_layers, *map(config.rule_layer, range(len(config.tables)))]
        #: a lake of ten thousand tables without any such setting needs no look at each
        self._of_tables = any(knob_of(key) in WHEN_TAKEN for layer in layers for key in layer.settings)
        self.any = self.budget.is_set or self._of_tables
        self._known = cache(lambda name: _limits(config, name))

    def of(self, table: str) -> TableLimits:
        """The limits of the table of this name."""
        return self._known(table) if self._of_tables else TableLimits()


def _limits(config: Config, name: str) -> TableLimits:
    # No rule asks for the format.
    return TableLimits.of(configure(config, TableRef(name=name, format=FORMATS[0], location=f"/{name}")).policy)
