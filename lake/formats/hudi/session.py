# SPDX-License-Identifier: Apache-2.0
"""Packages and settings that a Spark session needs for Hudi tables."""

from types import MappingProxyType

from lake.ports import SessionRequirements

BUNDLE = "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0"

SESSION = SessionRequirements(
    packages=(BUNDLE,),
    settings=MappingProxyType(
        {
            "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
            "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
            "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
            # Hudi's client refuses to start with speculation on.
            "spark.speculation": "false",
        }
    ),
)
