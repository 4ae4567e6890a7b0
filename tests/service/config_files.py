# SPDX-License-Identifier: Apache-2.0
"""Configuration files as tests of configuration write them, and the line that refuses one."""

from pathlib import Path

import pytest

from lake.model import TableRef
from service.control.config.loader import ConfigError, load_config
from service.control.config.table_settings import check_rules

MIB = 1 << 20
ORDERS = TableRef(name="sales.orders", format="hudi", location="/lake/sales/orders")


def written(text: str, name: str = "lakefold.toml") -> Path:
    """A configuration file in the working directory."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refused(text: str) -> str:
    """The one line that refuses ``text``, rules included."""
    written(text)
    with pytest.raises(ConfigError) as caught:
        check_rules(load_config())
    line = str(caught.value)
    assert "\n" not in line
    return line
