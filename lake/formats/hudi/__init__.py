# SPDX-License-Identifier: Apache-2.0
"""Apache Hudi: table versions 6, 8 and 9, copy-on-write and merge-on-read."""

from lake.formats.hudi.format import HudiFormat

FORMAT = HudiFormat()

__all__ = ["FORMAT", "HudiFormat"]
