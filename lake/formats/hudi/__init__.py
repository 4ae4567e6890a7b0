# SPDX-License-Identifier: Apache-2.0
"""Apache Hudi: table versions 6, 8 and 9, copy-on-write and merge-on-read.

The adapter is imported at its first use, because the Python processes of Spark's executors import modules of ``files``,
and have only these modules of the package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lake.formats.hudi.format import FORMAT, HudiFormat

__all__ = ["FORMAT", "HudiFormat"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("lake.formats.hudi.format"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
