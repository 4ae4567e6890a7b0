# SPDX-License-Identifier: Apache-2.0
"""Modes of a table: what lakefold may do with it unasked."""

from typing import Literal, get_args

Mode = Literal["observe", "propose", "compact", "off"]
MODES: tuple[Mode, ...] = get_args(Mode)
#: those in which scans store plans
PLANNED: tuple[Mode, ...] = ("propose", "compact")
