# SPDX-License-Identifier: Apache-2.0
"""``lakefold`` as it is once Hive tables are more than observed: ``python hive_open.py ARGUMENTS…``."""

from lake.formats.hive import HiveFormat
from service.cli import main

if __name__ == "__main__":
    del HiveFormat.observed_only
    main()
