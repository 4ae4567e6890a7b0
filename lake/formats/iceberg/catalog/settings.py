# SPDX-License-Identifier: Apache-2.0
"""The settings of a catalog, as users have them for Spark: ``spark.sql.catalog.NAME`` and the keys below it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lake.errors import Rejected
from lake.redaction import redact
from lake.storage.locations import canonical_location, is_local

PREFIX = "spark.sql.catalog."
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_JDBC_CATALOG = "org.apache.iceberg.jdbc.JdbcCatalog"
_HADOOP_CATALOG = "org.apache.iceberg.hadoop.HadoopCatalog"
_SQLITE = "jdbc:sqlite:"


class CatalogKind(StrEnum):
    """The kinds of catalogs that lakefold opens."""

    HADOOP = "hadoop"  #: the tables are the directories of a warehouse
    JDBC = "jdbc"  #: a database lists the tables


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """One catalog: its ``name`` in Spark, and its canonical ``warehouse``.

    ``database`` is the path of the SQLite file of a JDBC catalog, '' for a Hadoop catalog. ``unsafe_reason`` says why
    commits of two processes may replace each other; None if the catalog prevents that.
    """

    name: str
    kind: CatalogKind
    warehouse: str
    database: str = ""
    unsafe_reason: str | None = None


def is_iceberg_catalog(settings: Mapping[str, str], name: str) -> bool:
    """Return True if Spark's ``settings`` define ``name`` as an Iceberg catalog."""
    return settings.get(PREFIX + name, "") == SPARK_CATALOG


def read_settings(settings: Mapping[str, str], name: str) -> CatalogSettings:
    """Return the catalog ``name`` of Spark's ``settings``. Raises Rejected with the setting that is wrong or missing.

    That the catalog can be reached is not checked.
    """
    key = PREFIX + name
    found = settings.get(key)
    if not name:
        raise Rejected(
            "Iceberg tables of Spark's session catalog are not served; give them a catalog of the class "
            f"{SPARK_CATALOG} and name it in [[sources]] catalog"
        )
    if found is None:
        raise Rejected(f'catalog {name!r} has no settings; paste those of your writers into [spark], "{key}" first')
    if found != SPARK_CATALOG:
        raise Rejected(f"{key} = {found}: lakefold opens catalogs of the class {SPARK_CATALOG} only")
    kind = _kind(settings, key)
    warehouse = settings.get(f"{key}.warehouse", "")
    if not warehouse:
        raise Rejected(f"{key}.warehouse is not set; it is required for catalogs of type {kind}")
    if not is_local(warehouse):
        raise Rejected(
            f"{key}.warehouse = {warehouse}: Iceberg tables are served on local or mounted file systems only"
        )
    if (io := settings.get(f"{key}.io-impl")) is not None and io != "org.apache.iceberg.hadoop.HadoopFileIO":
        raise Rejected(
            f"{key}.io-impl = {io}: lakefold reads files through org.apache.iceberg.hadoop.HadoopFileIO only"
        )
    if kind is CatalogKind.HADOOP:
        return CatalogSettings(
            name=name,
            kind=kind,
            warehouse=canonical_location(warehouse),
            unsafe_reason=_unsafe_reason(settings, key),
        )
    return CatalogSettings(
        name=name, kind=kind, warehouse=canonical_location(warehouse), database=_sqlite_file(settings, key)
    )


def _unsafe_reason(settings: Mapping[str, str], key: str) -> str | None:
    """Return why commits to a Hadoop catalog may replace each other.

    Iceberg renames a metadata file to the next version's name after it has found no file there, and on local and
    mounted file systems a rename replaces a file. Iceberg's default lock is one of each Java process.
    """
    if f"{key}.lock-impl" in settings:
        return None
    return (
        "a Hadoop catalog on a local or mounted file system does not keep commits of two processes apart: one can "
        f"replace the other without an error; use another catalog, or set {key}.lock-impl for lakefold and all writers"
    )


def _kind(settings: Mapping[str, str], key: str) -> CatalogKind:
    class_name, kind = settings.get(f"{key}.catalog-impl"), settings.get(f"{key}.type")
    known = {_JDBC_CATALOG: CatalogKind.JDBC, _HADOOP_CATALOG: CatalogKind.HADOOP}
    if class_name is not None:
        if class_name not in known:
            raise Rejected(f"{key}.catalog-impl = {class_name}: lakefold opens {' and '.join(sorted(known))}")
        return known[class_name]
    if kind not in list(CatalogKind):
        # Iceberg's default is a Hive metastore.
        raise Rejected(f"{key}.type = {kind or 'hive'}: lakefold opens catalogs of type {' and '.join(CatalogKind)}")
    return CatalogKind(kind)


def _sqlite_file(settings: Mapping[str, str], key: str) -> str:
    uri = settings.get(f"{key}.uri", "")
    path = uri.removeprefix(_SQLITE).removeprefix("file:").partition("?")[0]
    if not uri.startswith(_SQLITE) or not path.startswith("/"):
        raise Rejected(f"{key}.uri = {redact(uri)}: of JDBC catalogs lakefold opens {_SQLITE}/PATH only")
    return path
