# SPDX-License-Identifier: Apache-2.0
"""Apache Iceberg: tables of Hadoop, Hive, JDBC and REST catalogs, format versions 1 to 3.

The adapter is imported at its first use, because the Python processes of Spark's executors import modules of ``files``,
and have only these modules of the package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lake.formats.iceberg.format import FORMAT, IcebergFormat

__all__ = ["FORMAT", "IcebergFormat"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("lake.formats.iceberg.format"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
