# SPDX-License-Identifier: Apache-2.0
"""Table formats, each one package exporting one ``TableFormat``, imported when first used."""

from importlib import import_module
from pkgutil import iter_modules
from typing import cast

from lake.errors import Rejected
from lake.ports import TableFormat

FORMATS = tuple(sorted(found.name for found in iter_modules(__path__) if found.ispkg))
"""The name of every format: its package's."""


def load_format(name: str) -> TableFormat:
    """The adapter of the format called ``name``; Rejected when there is none."""
    if name not in FORMATS:
        raise Rejected(f"unknown table format {name!r}; known: {', '.join(FORMATS)}")
    return cast(TableFormat, import_module(f"lake.formats.{name}").FORMAT)
