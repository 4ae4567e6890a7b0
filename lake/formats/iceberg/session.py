# SPDX-License-Identifier: Apache-2.0
"""The package that a Spark session needs for Iceberg tables. The catalogs are the user's own settings."""

from lake.ports import SessionRequirements

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.2"

SESSION = SessionRequirements(packages=(RUNTIME,))
