# SPDX-License-Identifier: Apache-2.0
"""Modes of a table (what lakefold does with it without a request) and roles of a process (its share of the work)."""

from enum import StrEnum
from typing import Literal, get_args

Mode = Literal["observe", "propose", "compact", "off"]
MODES: tuple[Mode, ...] = get_args(Mode)
#: modes in which scans store plans
PLANNED_MODES: tuple[Mode, ...] = ("propose", "compact")


class Role(StrEnum):
    """The share of lakefold's work that a process does; ``all`` in a small installation."""

    ALL = "all"
    SCHEDULER = "scheduler"
    EXECUTOR = "executor"
    API = "api"
