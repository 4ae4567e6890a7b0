# SPDX-License-Identifier: Apache-2.0
"""The tables of the configuration: it resolves sources to tables, and a given name or path to one table.

The name of a table found by searching a directory is its path below that directory, with dots for slashes. So a copy of
a table in another directory never takes its name. A table that is a source itself keeps its own name.
"""

import glob
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from pathlib import Path
from typing import Protocol

from lake.capabilities import ListedInCatalog, ListedInMetastore
from lake.errors import LakefoldError, Rejected, first_line
from lake.formats import FORMATS, load_formats
from lake.model import CatalogRef, SearchFailure, TableRef
from lake.ports import SparkProvider
from lake.storage.locations import canonical_location, is_local, location_identity
from service.control.config.loader import Config, catalog_listers, source_adapters
from service.control.config.sections import SourceSettings
from service.control.config.table_settings import ConfiguredTable, configure_table
from service.problems import NOT_FOUND, USAGE, ProblemError
from service.text import did_you_mean


class RegisteredTable(Protocol):
    """A table that the store has registered."""

    @property
    def name(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def location(self) -> str: ...
    @property
    def catalog(self) -> CatalogRef | None: ...


class Catalog:
    """The tables of a configuration.

    ``registered`` returns the tables in the store. A registered table is found by its name without a search of
    directories, and without a JVM even if it is in a catalog database. ``spark`` resolves catalog databases in a
    process that has a session.
    """

    def __init__(
        self,
        config: Config,
        *,
        registered: Callable[[], Sequence[RegisteredTable]] = lambda: (),
        spark: SparkProvider | None = None,
    ) -> None:
        self.config = config
        self._registered = registered
        self._spark = spark
        #: a line for each part of a source that the last ``table_refs`` could not resolve; other tables are served
        self.problems: list[str] = []
        #: the tables that the last ``table_refs`` left out, because they have the directory or the name of another one
        self.left_out: list[TableRef] = []
        #: the tables that each source named at the last ``table_refs``, by the source's number from 1
        self.names_by_source: dict[int, list[str]] = {}

    def tables(self) -> list[ConfiguredTable]:
        """Return every table of every source with its rules, by name.

        Raises ConfigError or OverrideError for a bad rule.
        """
        return [configure_table(self.config, ref) for ref in self.table_refs()]

    def table_refs(self) -> list[TableRef]:
        """Return every table of every source, by name; ``problems`` then has the parts that could not be resolved."""
        self.problems, self.left_out = [], []
        self.names_by_source = {number: [] for number in range(1, len(self.config.sources) + 1)}
        found: dict[str, TableRef] = {}
        by_place: dict[Hashable, TableRef] = {}
        for number, ref in self._find_all():
            identity, taken = location_identity(ref.location), found.get(ref.name)
            same = by_place.get(identity)
            if same is not None or taken is not None:
                self.left_out.append(ref)
            if same is not None:
                # Sources may overlap: the first source names the table. Two paths to one directory, or two catalog
                # tables in one directory, are likely a mistake and are reported.
                two = None not in (same.catalog, ref.catalog) and same.catalog != ref.catalog
                if two or same.location != ref.location:
                    self.problems.append(
                        f"{ref.location} ({ref.name!r}) is left out: it is the same directory as {same.location}, "
                        f"which is called {same.name!r}"
                    )
                continue
            if taken is not None:
                self.problems.append(
                    f"{ref.location} is left out: {taken.location} is called {ref.name!r} already; "
                    f"give source #{number} a prefix or a name"
                )
                continue
            found[ref.name] = by_place[identity] = ref
            self.names_by_source[number].append(ref.name)
        return [found[name] for name in sorted(found)]

    def _find_all(self) -> list[tuple[int, TableRef]]:
        """Return every table with the number of its source, tables under a symbolic link last."""
        found = []
        for number, source in enumerate(self.config.sources, 1):
            for one in _search_or_report(source.label, partial(self._resolve, source)):
                if isinstance(one, TableRef):
                    found.append((number, one))
                elif (problem := f"source #{number} ({source.label}): {one.reason}") not in self.problems:
                    self.problems.append(problem)
        return sorted(found, key=lambda entry: _is_linked(entry[1].location))

    def find(self, name: str) -> ConfiguredTable:
        """Return the table called ``name``: its full name, an ending that only one name has, or its path.

        Raises ProblemError: not found (with the nearest names), or usage if several names have this ending.
        """
        if _is_path(name):
            return configure_table(self.config, self._find_at(canonical_location(name)))
        remembered = {known.name: known for known in self._registered() if self.covers(known)}
        if name in remembered:
            return configure_table(self.config, _registered_ref(remembered[name]))
        refs = {ref.name: ref for ref in self.table_refs()}
        if name in refs:
            return configure_table(self.config, refs[name])
        # A registered table may be missing in its source; the caller then reports this.
        ending = unique_suffix_match(name, sorted(remembered.keys() | refs.keys()))
        if ending is not None:
            return configure_table(self.config, refs.get(ending) or _registered_ref(remembered[ending]))
        if Path(name).is_dir():
            return configure_table(self.config, self._find_at(canonical_location(name)))
        why = f" ({'; '.join(self.problems)})" if self.problems else ""
        if not refs:
            hint = " in [[sources]]" if self.config.sources else ": [[sources]] is empty; give a path or add a source"
            raise ProblemError(NOT_FOUND, f"no table {name!r}, there are no tables{hint}{why}", table=name)
        hint = did_you_mean(name, list(refs)) or f"; {len(refs)} tables are known, see lakefold tables list"
        raise ProblemError(NOT_FOUND, f"no table {name!r}{hint}{why}", table=name)

    def _find_at(self, location: str) -> TableRef:
        served = [_registered_ref(known) for known in self._registered() if self.covers(known)]
        if match := _find_by_location(served, location):
            return match
        if any(self._covers(source, location) for source in self.config.sources):
            match = _find_by_location(self.table_refs(), location)
            if match is not None:
                return match
        refusal: LakefoldError | None = None
        for adapter in load_formats():
            try:
                found = adapter.discover(location)
                ref = next((one for one in found if isinstance(one, TableRef) and one.location == location), None)
            except Rejected as error:
                refusal = error
                continue
            if ref is not None:
                return ref
        if is_local(location) and not Path(location).exists():
            raise ProblemError(NOT_FOUND, f"no such directory: {location}", path=location)
        raise ProblemError(
            NOT_FOUND,
            f"{location} is not a table of a known format ({', '.join(FORMATS)})" + (f": {refusal}" if refusal else ""),
            path=location,
        )

    def _covers(self, source: SourceSettings, location: str) -> bool:
        """Return True if a table at ``location``, or at the target of its links, may belong to ``source``."""
        if source.path is None:
            return False
        path = self._absolute_path(source.path)
        linked = is_local(location) and is_local(path) and is_under(os.path.realpath(location), os.path.realpath(path))
        return linked or is_under(location, path)

    def covers(self, table: RegisteredTable) -> bool:
        """Return True if a source of the configuration still gives a registered table its name; reads no storage."""
        return any(self._source_covers(source, table) for source in self.config.sources)

    def is_former_name(self, table: RegisteredTable) -> bool:
        """Return True if the sources give a registered table of a metastore another name; reads no storage.

        The first source that lists a table names it.
        """
        if table.catalog is None:
            return False
        source = next((source for source in self.config.sources if _lists_in_metastore(source, table)), None)
        return source is not None and table.name != source.prefix + table.catalog.table

    def _source_covers(self, source: SourceSettings, known: RegisteredTable) -> bool:
        if source.path is not None:
            return is_under(known.location, self._absolute_path(source.path))
        if source.metastore is not None:
            return _lists_in_metastore(source, known) and not self.is_former_name(known)
        if catalog_listers(source):
            if known.catalog is None or known.catalog.name != source.catalog:
                return False
            database, _, table = known.catalog.table.rpartition(".")
            found = fnmatchcase(database, source.database or "*") and fnmatchcase(table, source.table or "*")
            return found and known.name == source.prefix + known.catalog.table
        return known.name.startswith(f"{source.prefix}{source.database}.")

    def _absolute_path(self, path: str) -> str:
        """Return ``path`` made absolute; paths in the file are relative to the file."""
        start = self.config.file.parent if self.config.file else Path()
        return canonical_location(path, start)

    def _resolve(self, source: SourceSettings) -> Iterator[TableRef | SearchFailure]:
        """Yield the tables of a source, and the parts of it that can't be searched.

        Raises an error that concerns the whole source.
        """
        if source.metastore is not None:
            yield from self._metastore_tables(source, source.metastore)
            return
        if source.path is None:
            if listers := catalog_listers(source):
                for lister in listers:
                    yield from _listed_tables(lister, source)
                return
            if source.database is None or source.table is not None:
                raise Rejected(_unlisted_catalog_text(source.catalog or "", self.config.spark))
            yield from self._catalog_tables(source)
            return
        path = self._absolute_path(source.path)
        pattern = is_local(path) and glob.has_magic(path)
        roots = sorted(filter(os.path.isdir, glob.glob(path))) if pattern else [path]
        if not roots:
            raise Rejected(f"no directory matches {path}")
        base = _glob_root(path) if pattern else path
        for root, adapter in product(roots, source_adapters(source)):
            for ref in _search_or_report(root, partial(adapter.discover, root)):
                if isinstance(ref, SearchFailure):
                    yield ref
                    continue
                own = ref.location == base
                if source.name is not None and not own:
                    raise Rejected(f"name = {source.name!r} is for one table, but {path} is not a table itself")
                below = ref.location.removeprefix(base).strip("/").replace("/", ".")
                yield replace(ref, name=source.name or source.prefix + (ref.name if own else below))

    def _metastore_tables(self, source: SourceSettings, uri: str) -> Iterator[TableRef | SearchFailure]:
        for adapter in source_adapters(source):
            if not isinstance(adapter, ListedInMetastore):
                raise Rejected(f"format = {adapter.name!r}: such tables are not found in a metastore; unset format")
            for ref in adapter.discover_in_metastore(uri, source.database_pattern, source.table_pattern):
                yield ref if isinstance(ref, SearchFailure) else replace(ref, name=source.prefix + ref.name)

    def _catalog_tables(self, source: SourceSettings) -> Iterator[TableRef | SearchFailure]:
        start = f"{source.prefix}{source.database}."
        if self._spark is None:
            for known in self._registered():
                if known.name.startswith(start):
                    yield _registered_ref(known)
            return
        session = self._spark()
        database = f"`{source.catalog}`.`{source.database}`" if source.catalog else f"`{source.database}`"
        try:
            tables = session.sql(f"SHOW TABLES IN {database}").collect()
        except Exception as error:  # of Spark, whose classes are not imported here
            yield SearchFailure(location=database, reason=first_line(error))
            return
        for listed in tables:
            if listed["isTemporary"]:
                continue
            table = f"{database}.`{listed['tableName']}`"
            try:
                described = session.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
            except Exception as error:
                yield SearchFailure(location=table, reason=f"{table}: {first_line(error)}")
                continue
            facts = {row[0]: row[1] for row in described}
            provider = str(facts.get("Provider", "")).lower()
            if provider in ((source.format,) if source.format else FORMATS) and facts.get("Location"):
                yield TableRef(
                    name=start + listed["tableName"],
                    format=provider,
                    location=canonical_location(facts["Location"]),
                    catalog=CatalogRef(
                        kind="spark", name=source.catalog or "", table=f"{source.database}.{listed['tableName']}"
                    ),
                )


def _lists_in_metastore(source: SourceSettings, known: RegisteredTable) -> bool:
    """Return True if ``source`` lists a registered table of a metastore, under whatever name."""
    if source.metastore is None or known.catalog is None or known.catalog.name != source.metastore:
        return False
    if source.format not in (None, known.format):
        return False
    return fnmatchcase(known.catalog.table, f"{source.database_pattern}.{source.table_pattern}")


def _unlisted_catalog_text(catalog: str, spark: Mapping[str, str]) -> str:
    """Say why no format lists the tables of ``catalog``, and how its tables can be served."""
    key = f"spark.sql.catalog.{catalog}"
    if key in spark:
        return (
            f"{key} = {spark[key]}: of catalogs in [spark] lakefold lists those of the class "
            "org.apache.iceberg.spark.SparkCatalog; for a database of any other catalog set database, and no table"
        )
    defined = [name for name in (one.removeprefix("spark.sql.catalog.") for one in spark) if "." not in name]
    hint = did_you_mean(catalog, defined)
    return (
        f"catalog {catalog!r} is not an Iceberg catalog of [spark], so the source needs database, and no table{hint}; "
        f'for an Iceberg catalog paste its settings, "{key}" and the keys below it, into [spark]'
    )


def _listed_tables(adapter: ListedInCatalog, source: SourceSettings) -> Iterator[TableRef | SearchFailure]:
    for ref in adapter.discover_in_catalog(source.catalog or "", source.database or "*", source.table or "*"):
        yield ref if isinstance(ref, SearchFailure) else replace(ref, name=source.prefix + ref.name)


def _search_or_report(
    location: str, search: Callable[[], Iterable[TableRef | SearchFailure]]
) -> Iterator[TableRef | SearchFailure]:
    """Yield the results of ``search``; an error becomes the last result."""
    try:
        yield from search()
    except (LakefoldError, OSError) as error:
        yield SearchFailure(location=location, reason=str(error))


def _registered_ref(known: RegisteredTable) -> TableRef:
    return TableRef(name=known.name, format=known.format, location=known.location, catalog=known.catalog)


def _find_by_location(refs: Sequence[TableRef], location: str) -> TableRef | None:
    """Return the table with this ``location`` or with another path to the same directory; None if there is none."""
    spelled = next((ref for ref in refs if ref.location == location), None)
    if spelled is not None or not is_local(location) or not os.path.isdir(location):
        return spelled
    identity = location_identity(location)
    return next((ref for ref in refs if is_local(ref.location) and location_identity(ref.location) == identity), None)


def _is_linked(location: str) -> bool:
    return is_local(location) and os.path.realpath(location) != location


def unique_suffix_match(suffix: str, names: Iterable[str]) -> str | None:
    """Return the only one of ``names`` that ends in ``suffix`` after a dot; None if there is none.

    Raises ProblemError if there are several.
    """
    ending = [name for name in names if name.endswith(f".{suffix}")]
    if len(ending) > 1:
        raise ProblemError(USAGE, f"{suffix!r} is the end of {len(ending)} names: {', '.join(ending)}", tables=ending)
    return ending[0] if ending else None


def _is_path(word: str) -> bool:
    return "/" in word or word.startswith(("~", "."))


def _glob_root(pattern: str) -> str:
    parts = pattern.split("/")
    fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:fixed]) or "/"


def is_under(location: str, path: str) -> bool:
    """Return True if ``location`` is ``path`` or below it; a pattern covers everything below its fixed part."""
    root = _glob_root(path) if is_local(path) and glob.has_magic(path) else path
    return location == root or location.startswith(root.rstrip("/") + "/")
