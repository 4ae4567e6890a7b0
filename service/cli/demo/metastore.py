# SPDX-License-Identifier: Apache-2.0
"""A Hive metastore on Derby that needs only the PySpark wheel, for trials and not for production.

``python -m service.cli.demo.metastore HOME PORT WAREHOUSE`` runs it. The wheel contains Hive's metastore server among
Hive's other libraries.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from executors.spark import java_home

_CLASS = "org.apache.hadoop.hive.metastore.HiveMetaStore"
_SETTINGS = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName={home}/derby;create=true",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
    # Asynchronous logging needs a class that the wheel does not have.
    "hive.async.log.enabled": "false",
    "hive.metastore.warehouse.dir": "file://{warehouse}",
    # Otherwise the server runs five programs for each directory that it creates.
    "hive.warehouse.subdir.inherit.perms": "false",
}


def server_command(home: Path, port: int, warehouse: Path) -> list[str]:
    """Prepare ``home`` and return the command of a metastore that listens at ``port`` and stores its data in ``home``.

    Databases without an explicit location are placed below ``warehouse``.
    """
    home.mkdir(parents=True, exist_ok=True)
    properties = "".join(
        f"<property><name>{name}</name><value>{value.format(home=home, warehouse=warehouse)}</value></property>"
        for name, value in _SETTINGS.items()
    )
    (home / "hive-site.xml").write_text(f"<configuration>{properties}</configuration>")
    wheel = find_spec("pyspark")
    assert wheel is not None, "lakefold requires it"
    jars = Path(str(wheel.origin)).parent / "jars"
    return [
        *(str(java_home() / "bin" / "java"), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        # Derby resolves a deadlock of two transactions after 20 s by default; every other client waits meanwhile.
        *("-Dderby.locks.deadlockTimeout=1", f"-Dderby.stream.error.file={home}/derby.log"),
        *("-cp", f"{home}:{jars}/*", _CLASS, "-p", str(port)),
    ]


def main(home: str, port: str, warehouse: str) -> None:
    """Replace this process with the server."""
    command = server_command(Path(home).absolute(), int(port), Path(warehouse).absolute())
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
