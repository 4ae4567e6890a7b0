# SPDX-License-Identifier: Apache-2.0
"""The settings of a catalog are those of Spark: ``spark.sql.catalog.NAME`` and the keys below it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from lake.errors import Rejected
from lake.metastore import normalized_uri
from lake.redaction import redact
from lake.storage.locations import canonical_location, is_local

PREFIX = "spark.sql.catalog."
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
SQLITE, POSTGRESQL = "jdbc:sqlite:", "jdbc:postgresql:"
_METASTORE = "spark.hadoop.hive.metastore.uris"
_METASTORE_LOCK = "engine.hive.lock-enabled"
#: Iceberg's default, which excludes only threads of the same Java process
_LOCK_OF_ONE_PROCESS = "org.apache.iceberg.util.LockManagers$InMemoryLockManager"


class CatalogKind(StrEnum):
    """The kinds of catalogs that lakefold opens."""

    HADOOP = "hadoop"  #: the tables are the directories of a warehouse
    HIVE = "hive"  #: a Hive metastore lists the tables
    JDBC = "jdbc"  #: a database lists the tables
    REST = "rest"  #: a server with Iceberg's REST interface lists the tables


_CLASSES = {
    "org.apache.iceberg.hadoop.HadoopCatalog": CatalogKind.HADOOP,
    "org.apache.iceberg.hive.HiveCatalog": CatalogKind.HIVE,
    "org.apache.iceberg.jdbc.JdbcCatalog": CatalogKind.JDBC,
    "org.apache.iceberg.rest.RESTCatalog": CatalogKind.REST,
}
#: the settings of a REST catalog that PyIceberg has under the same names as Iceberg's Java client
_REST_SETTINGS = frozenset(
    {"uri", "warehouse", "prefix", "token", "credential", "scope", "audience", "resource", "oauth2-server-uri"}
)
#: the libpq parameters that PostgreSQL's JDBC driver has under the same names
_POSTGRESQL_SETTINGS = frozenset({"sslmode", "sslcert", "sslkey", "sslrootcert"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """One catalog: its ``name`` in Spark, and its canonical ``warehouse``, '' if only the catalog's server knows it.

    ``database`` is the path of a JDBC catalog's SQLite file, '' for all other catalogs. ``uri`` is the address of a
    catalog's server: of a REST server, of a Hive metastore, or of a PostgreSQL database (SQLAlchemy's URL).
    ``properties`` are PyIceberg's properties of a REST catalog. ``unsafe_reason`` is the reason why commits of two
    processes may replace each other; None if the catalog prevents this.
    """

    name: str
    kind: CatalogKind
    warehouse: str = ""
    database: str = ""
    uri: str = field(default="", repr=False)
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    unsafe_reason: str | None = None


def is_iceberg_catalog(settings: Mapping[str, str], name: str) -> bool:
    """Return True if Spark's ``settings`` define ``name`` as an Iceberg catalog."""
    return settings.get(PREFIX + name, "") == SPARK_CATALOG


def named_catalogs(settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each catalog that Spark's ``settings`` define, of any class, and the key that defines it."""
    for key in settings:
        name = key.removeprefix(PREFIX)
        if name != key and name and "." not in name:
            yield name, key


def read_settings(settings: Mapping[str, str], name: str) -> CatalogSettings:
    """Return the catalog ``name`` of Spark's ``settings``. Does not connect to the catalog.

    Raises Rejected, with the setting's name, if a setting is wrong or missing.
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
    if (io := settings.get(f"{key}.io-impl")) is not None and io != "org.apache.iceberg.hadoop.HadoopFileIO":
        raise Rejected(
            f"{key}.io-impl = {io}: lakefold reads files through org.apache.iceberg.hadoop.HadoopFileIO only"
        )
    if kind is CatalogKind.REST:
        return _rest_settings(settings, name)
    if kind is CatalogKind.HIVE:
        return _hive_settings(settings, name)
    warehouse = settings.get(f"{key}.warehouse", "")
    if not warehouse:
        raise Rejected(f"{key}.warehouse is not set; it is required for catalogs of type {kind}")
    if not is_local(warehouse):
        raise Rejected(
            f"{key}.warehouse = {warehouse}: Iceberg tables are served on local or mounted file systems only"
        )
    location = canonical_location(warehouse)
    if kind is CatalogKind.HADOOP:
        return CatalogSettings(name=name, kind=kind, warehouse=location, unsafe_reason=_unsafe_reason(settings, key))
    if settings.get(f"{key}.uri", "").startswith(POSTGRESQL):
        return CatalogSettings(name=name, kind=kind, warehouse=location, uri=_postgresql_url(settings, key))
    return CatalogSettings(name=name, kind=kind, warehouse=location, database=_sqlite_file(settings, key))


def _unsafe_reason(settings: Mapping[str, str], key: str) -> str | None:
    """Return why commits to a Hadoop catalog may replace each other.

    Iceberg checks that there is no file with the next version's name, then renames its metadata file to this name. On
    local and mounted file systems a rename replaces an existing file.
    """
    lock = settings.get(f"{key}.lock-impl")
    if lock not in (None, _LOCK_OF_ONE_PROCESS):
        return None
    useless = "" if lock is None else f" ({lock} excludes only threads of one process)"
    return (
        "in a Hadoop catalog on a local or mounted file system, one of two simultaneous commits can replace the other "
        f"without an error; use another catalog, or set {key}.lock-impl for lakefold and all writers{useless}"
    )


def _kind(settings: Mapping[str, str], key: str) -> CatalogKind:
    class_name, kind = settings.get(f"{key}.catalog-impl"), settings.get(f"{key}.type", "hive")  # Iceberg's default
    if class_name is not None:
        if class_name not in _CLASSES:
            raise Rejected(f"{key}.catalog-impl = {class_name}: lakefold opens {_listed(_CLASSES)}")
        return _CLASSES[class_name]
    if kind not in list(CatalogKind):
        raise Rejected(f"{key}.type = {kind}: lakefold opens catalogs of type {_listed(CatalogKind)}")
    return CatalogKind(kind)


def _listed(names: Iterable[str]) -> str:
    *first, last = sorted(names)
    return f"{', '.join(first)} and {last}"


def _sqlite_file(settings: Mapping[str, str], key: str) -> str:
    uri = settings.get(f"{key}.uri", "")
    path = uri.removeprefix(SQLITE).removeprefix("file:").partition("?")[0]
    if not uri.startswith(SQLITE) or not path.startswith("/"):
        raise Rejected(
            f"{key}.uri = {redact(uri)}: lakefold opens {SQLITE}/PATH and {POSTGRESQL}//HOST/DATABASE only; PATH is "
            "absolute"
        )
    return path


def _postgresql_url(settings: Mapping[str, str], key: str) -> str:
    """Return SQLAlchemy's URL for the JDBC driver's ``uri``, ``jdbc.user`` and ``jdbc.password``.

    The driver's other parameters, such as pool sizes, concern only the driver.
    """
    uri = settings[f"{key}.uri"]
    parts = urlsplit(uri.removeprefix("jdbc:"))
    given = dict(parse_qsl(parts.query))
    name, password = (settings.get(f"{key}.jdbc.{one}", given.get(one)) for one in ("user", "password"))
    database = parts.path.removeprefix("/")
    try:
        is_address = bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number of a port
        is_address = False
    if not is_address or parts.netloc.endswith(":") or "@" in parts.netloc or "," in parts.netloc or not database:
        raise Rejected(
            f"{key}.uri = {redact(uri)}: lakefold opens {POSTGRESQL}//HOST:PORT/DATABASE with one host; "
            f"{key}.jdbc.user and {key}.jdbc.password are the login"
        )
    login = quote(name or "", safe="") + (f":{quote(password, safe='')}" if password else "")
    query = urlencode({one: value for one, value in given.items() if one in _POSTGRESQL_SETTINGS})
    return f"postgresql+psycopg://{login}{'@' if login else ''}{parts.netloc}/{database}{'?' if query else ''}{query}"


def _hive_settings(settings: Mapping[str, str], name: str) -> CatalogSettings:
    key = PREFIX + name
    uri = settings.get(f"{key}.uri", settings.get(_METASTORE, ""))
    if not uri:
        raise Rejected(f"neither {key}.uri nor {_METASTORE} is set; it names the Hive metastore")
    try:
        uri = normalized_uri(uri)
    except ValueError as error:
        assumed = "" if {f"{key}.type", f"{key}.catalog-impl"} & {*settings} else f"; without {key}.type it is hive"
        raise Rejected(f"{key}.uri = {redact(uri)}: {error}{assumed}") from error
    unlocked = settings.get(f"spark.hadoop.iceberg.{_METASTORE_LOCK}", "true").lower() == "false"
    setting = f"spark.hadoop.iceberg.{_METASTORE_LOCK}"
    return CatalogSettings(
        name=name, kind=CatalogKind.HIVE, uri=uri, unsafe_reason=_unlocked_reason(setting) if unlocked else None
    )


def _unlocked_reason(setting: str) -> str:
    return (
        f"{setting} = false: without the lock, commits are safe only if the metastore compares the table's parameters. "
        "Not every release does, and lakefold can't detect it; one commit might replace another without an error"
    )


def _rest_settings(settings: Mapping[str, str], name: str) -> CatalogSettings:
    key = PREFIX + name
    below = {one.removeprefix(f"{key}."): value for one, value in settings.items() if one.startswith(f"{key}.")}
    if not below.get("uri", "").startswith(("http://", "https://")):
        raise Rejected(
            f"{key}.uri = {redact(below.get('uri', ''))}: it must be the http:// or https:// address of a REST server"
        )
    for setting, supported in (("rest.auth.type", ("none", "oauth2")), ("rest.sigv4-enabled", ("false",))):
        if (value := below.get(setting, supported[0])).lower() not in supported:
            raise Rejected(f"{key}.{setting} = {value}: lakefold supports {' and '.join(supported)} only")
    properties = {one: value for one, value in below.items() if one in _REST_SETTINGS or one.startswith("header.")}
    return CatalogSettings(name=name, kind=CatalogKind.REST, uri=below["uri"], properties=MappingProxyType(properties))


def unsafe_table_reason(settings: CatalogSettings, format_version: int, properties: Mapping[str, str]) -> str | None:
    """Return why commits to a table may replace each other, or take effect after a withdrawal; None if they can't."""
    if settings.kind is CatalogKind.HIVE and properties.get(_METASTORE_LOCK, "true").lower() == "false":
        return _unlocked_reason(_METASTORE_LOCK)
    if settings.kind is CatalogKind.REST and format_version == 1:
        # A REST server compares the newest snapshot and the sequence number, not the whole metadata.
        return (
            "format version 1 has no sequence numbers, which a REST catalog needs to refuse a withdrawn commit after a "
            "rollback; tables of version 2 are rewritten"
        )
    return settings.unsafe_reason
