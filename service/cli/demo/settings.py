# SPDX-License-Identifier: Apache-2.0
"""The demo's lakefold.toml: an ordinary configuration, with limits for a table of a few MiB."""

import json
import socket
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path


class Format(StrEnum):
    """The formats that the demo's table may have."""

    HUDI = "hudi"
    HIVE = "hive"
    ICEBERG = "iceberg"


TABLE = "demo.trips"
SMALL_FILE_LIMIT_BYTES = 256 * 1024
TARGET_FILE_MAX_BYTES = 4 * 1024 * 1024
FIRST_RETENTION = "1h"
SHORT_RETENTION = "10s"


def config_text(source: str, database: Path, port: int, retention: str, spark: Mapping[str, str]) -> str:
    """Return the text of the file. ``source`` has the lines about tables; ``retention`` is a text such as "1h".

    ``spark`` are further settings of Spark.
    """
    listed = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in spark.items())
    return f"""\
[database]
url = {json.dumps(f"sqlite:///{database}")}

{source}
[defaults]
small_file_limit = "{SMALL_FILE_LIMIT_BYTES // 1024}KiB"         # default 300MiB
target_file_max = "{TARGET_FILE_MAX_BYTES // 1024 // 1024}MiB"             # 1GiB
max_bytes_per_group = "8MiB"       # 2GiB
max_num_groups = 4                 # 30; the demo shows several plans
min_input_files = 4                # 2
quiet_period = "3s"                # 15min
scan_interval = "2s"               # 5min
retention = "{retention}"{" " * (20 - len(retention))}# 7d
verification = "hash"              # every value is verified before a commit
backoff = "1s"                     # 30s
max_attempts = 20                  # 5; two busy processes share two cores and one lock

[daemon]
clean_interval = "2s"              # 5min

[http]
port = {port}

[spark]
master = "local[2]"
"spark.driver.memory" = "1g"
"spark.sql.shuffle.partitions" = "2"
{listed}"""


def free_port(wanted: int = 9464) -> int:
    """Return the port ``wanted`` if it is free on this machine, else another free port."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no port is free on 127.0.0.1")
