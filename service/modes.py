# SPDX-License-Identifier: Apache-2.0
"""Modes of a table: what lakefold may do with it unasked. Roles of a process: what of all the work it does."""

from enum import StrEnum
from typing import Literal, get_args

Mode = Literal["observe", "propose", "compact", "off"]
MODES: tuple[Mode, ...] = get_args(Mode)
#: those in which scans store plans
PLANNED_MODES: tuple[Mode, ...] = ("propose", "compact")


class Role(StrEnum):
    """What a process does; all of it in the small installation."""

    ALL = "all"
    SCHEDULER = "scheduler"
    EXECUTOR = "executor"
    API = "api"
