# SPDX-License-Identifier: Apache-2.0
"""The packages that a Spark session needs for Iceberg tables. The catalogs are the user's own settings."""

from collections.abc import Mapping

from lake.formats.iceberg.catalog.settings import POSTGRESQL, SQLITE, is_iceberg_catalog, named_catalogs
from lake.ports import SessionRequirements

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.2"
#: the drivers of JDBC catalogs, by the beginning of a catalog's address; Iceberg's package contains none
DRIVERS = {SQLITE: "org.xerial:sqlite-jdbc:3.49.1.0", POSTGRESQL: "org.postgresql:postgresql:42.7.14"}


def requirements(settings: Mapping[str, str]) -> SessionRequirements:
    """Return Iceberg's package, and the drivers that the catalogs of Spark's ``settings`` need."""
    addresses = [
        settings.get(f"{key}.uri", "") for name, key in named_catalogs(settings) if is_iceberg_catalog(settings, name)
    ]
    drivers = [driver for start, driver in DRIVERS.items() if any(one.startswith(start) for one in addresses)]
    return SessionRequirements(packages=(RUNTIME, *drivers))
