# SPDX-License-Identifier: Apache-2.0
"""The tables there are: sources resolved to tables, and a person's word for a table resolved to one of them.

A table found by searching a directory is called by its path below that directory, dots for slashes, so that a copy
of a table elsewhere never takes its name; a table that is a source itself keeps its own name.
"""

import glob
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from pathlib import Path
from typing import Protocol

from lake.errors import LakefoldError, Rejected, first_line
from lake.formats import FORMATS, load_format
from lake.locations import canonical_location, is_local, place_of
from lake.model import CatalogRef, TableRef, Unsearched
from lake.optional import FoundInMetastore
from lake.ports import SparkProvider
from service.config.loader import Config, formats_of
from service.config.sections import Source
from service.config.tables import ConfiguredTable, configure
from service.problems import NOT_FOUND, USAGE, CommandError
from service.text import nearest


class Known(Protocol):
    """A table the store remembers."""

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

    ``known`` gives the tables the store remembers: a name among them is found without searching any directory,
    and tables of a catalog database without a JVM. ``spark`` resolves catalog databases where a role has a session.
    """

    def __init__(
        self,
        config: Config,
        *,
        known: Callable[[], Sequence[Known]] = lambda: (),
        spark: SparkProvider | None = None,
    ) -> None:
        self.config = config
        self._known = known
        self._spark = spark
        #: what could not be resolved at the last ``refs``, one line each; the other tables are served
        self.problems: list[str] = []
        #: the tables that each source gave a name to at the last ``refs``, by its number from 1
        self.named_by: dict[int, list[str]] = {}

    def tables(self) -> list[ConfiguredTable]:
        """Every table of every source with its rules, by name. Raises ConfigError or OverrideError for a bad rule."""
        return [configure(self.config, ref) for ref in self.refs()]

    def refs(self) -> list[TableRef]:
        """Every table of every source, by name; what can't be resolved is in ``problems`` afterwards."""
        self.problems = []
        self.named_by = {number: [] for number in range(1, len(self.config.sources) + 1)}
        found: dict[str, TableRef] = {}
        by_place: dict[Hashable, TableRef] = {}
        for number, ref in self._found():
            place, taken = place_of(ref.location), found.get(ref.name)
            same = by_place.get(place)
            if same is not None:
                # Sources may overlap, then the first one names the table. Two paths are more likely a mistake, and so
                # are two tables of catalogs in one directory.
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
            found[ref.name] = by_place[place] = ref
            self.named_by[number].append(ref.name)
        return [found[name] for name in sorted(found)]

    def _found(self) -> list[tuple[int, TableRef]]:
        """Every table with the number of its source, those under a symbolic link last."""
        found = []
        for number, source in enumerate(self.config.sources, 1):
            for one in _or_unsearched(source.shown, partial(self._resolve, source)):
                if isinstance(one, TableRef):
                    found.append((number, one))
                elif (problem := f"source #{number} ({source.shown}): {one.reason}") not in self.problems:
                    self.problems.append(problem)
        return sorted(found, key=lambda entry: _is_linked(entry[1].location))

    def find(self, word: str) -> ConfiguredTable:
        """The table called ``word``: its name, the end of its name where only one ends so, or its path.

        Raises CommandError (not found, with the nearest names; usage, when several names end so).
        """
        if _is_path(word):
            return configure(self.config, self._at(canonical_location(word)))
        remembered = {known.name: known for known in self._known() if self.covers(known)}
        if word in remembered:
            return configure(self.config, _remembered(remembered[word]))
        refs = {ref.name: ref for ref in self.refs()}
        if word in refs:
            return configure(self.config, refs[word])
        ending = unique_end(word, refs)
        if ending is not None:
            return configure(self.config, refs[ending])
        if Path(word).is_dir():
            return configure(self.config, self._at(canonical_location(word)))
        why = f" ({'; '.join(self.problems)})" if self.problems else ""
        if not refs:
            hint = " in [[sources]]" if self.config.sources else ": [[sources]] is empty; give a path or add a source"
            raise CommandError(NOT_FOUND, f"no table {word!r}, there are no tables{hint}{why}", table=word)
        hint = nearest(word, list(refs)) or f"; {len(refs)} tables are known, see lakefold tables list"
        raise CommandError(NOT_FOUND, f"no table {word!r}{hint}{why}", table=word)

    def _at(self, location: str) -> TableRef:
        served = [_remembered(known) for known in self._known() if self.covers(known)]
        if match := _located(served, location):
            return match
        if any(self._covers(source, location) for source in self.config.sources):
            match = _located(self.refs(), location)
            if match is not None:
                return match
        refusal: LakefoldError | None = None
        for name in FORMATS:
            try:
                found = load_format(name).discover(location)
                ref = next((one for one in found if isinstance(one, TableRef) and one.location == location), None)
            except Rejected as error:
                refusal = error
                continue
            if ref is not None:
                return ref
        if is_local(location) and not Path(location).exists():
            raise CommandError(NOT_FOUND, f"no such directory: {location}", path=location)
        raise CommandError(
            NOT_FOUND,
            f"{location} is not a table of a known format ({', '.join(FORMATS)})" + (f": {refusal}" if refusal else ""),
            path=location,
        )

    def _covers(self, source: Source, location: str) -> bool:
        """Whether a table at ``location``, or where its links lead to, may be one of ``source``."""
        if source.path is None:
            return False
        path = self._path(source.path)
        linked = is_local(location) and is_local(path) and under(os.path.realpath(location), os.path.realpath(path))
        return linked or under(location, path)

    def covers(self, known: Known) -> bool:
        """Whether a source of the configuration in force still covers a table the store remembers; looks nowhere."""
        return any(self._covered_by(source, known) for source in self.config.sources)

    def _covered_by(self, source: Source, known: Known) -> bool:
        if source.path is not None:
            return under(known.location, self._path(source.path))
        if source.metastore is None:
            return known.name.startswith(f"{source.prefix}{source.database}.")
        if known.catalog is None or known.catalog.name != source.metastore:
            return False
        found = fnmatchcase(known.catalog.table, f"{source.databases}.{source.tables}")
        return found and known.name == source.prefix + known.catalog.table

    def _path(self, path: str) -> str:
        """Paths of the file are relative to the file."""
        start = self.config.file.parent if self.config.file else Path()
        return canonical_location(path, start)

    def _resolve(self, source: Source) -> Iterator[TableRef | Unsearched]:
        """The tables of a source, and the parts of it that can't be searched. Raises what concerns all of it."""
        if source.metastore is not None:
            yield from self._metastore_tables(source, source.metastore)
            return
        if source.path is None:
            yield from self._catalog_tables(source)
            return
        path = self._path(source.path)
        adapters = [load_format(name) for name in formats_of(source)]
        pattern = is_local(path) and glob.has_magic(path)
        roots = sorted(filter(os.path.isdir, glob.glob(path))) if pattern else [path]
        if not roots:
            raise Rejected(f"no directory matches {path}")
        base = _fixed_part(path) if pattern else path
        for root, adapter in product(roots, adapters):
            for ref in _or_unsearched(root, partial(adapter.discover, root)):
                if isinstance(ref, Unsearched):
                    yield ref
                    continue
                own = ref.location == base
                if source.name is not None and not own:
                    raise Rejected(f"name = {source.name!r} is for one table, but {path} is not a table itself")
                below = ref.location.removeprefix(base).strip("/").replace("/", ".")
                yield replace(ref, name=source.name or source.prefix + (ref.name if own else below))

    def _metastore_tables(self, source: Source, uri: str) -> Iterator[TableRef | Unsearched]:
        for adapter in map(load_format, formats_of(source)):
            if not isinstance(adapter, FoundInMetastore):
                raise Rejected(f"format = {adapter.name!r}: such tables are not found in a metastore; unset format")
            for ref in adapter.in_metastore(uri, source.databases, source.tables):
                yield ref if isinstance(ref, Unsearched) else replace(ref, name=source.prefix + ref.name)

    def _catalog_tables(self, source: Source) -> Iterator[TableRef | Unsearched]:
        start = f"{source.prefix}{source.database}."
        if self._spark is None:
            for known in self._known():
                if known.name.startswith(start):
                    yield _remembered(known)
            return
        session = self._spark()
        database = f"`{source.catalog}`.`{source.database}`" if source.catalog else f"`{source.database}`"
        try:
            tables = session.sql(f"SHOW TABLES IN {database}").collect()
        except Exception as error:  # of Spark, whose classes are not imported here
            yield Unsearched(location=database, reason=first_line(error))
            return
        for listed in tables:
            if listed["isTemporary"]:
                continue
            table = f"{database}.`{listed['tableName']}`"
            try:
                described = session.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
            except Exception as error:
                yield Unsearched(location=table, reason=f"{table}: {first_line(error)}")
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


def _or_unsearched(
    location: str, search: Callable[[], Iterable[TableRef | Unsearched]]
) -> Iterator[TableRef | Unsearched]:
    """What ``search`` finds before an error, then the error: it hides nothing that was found."""
    try:
        yield from search()
    except (LakefoldError, OSError) as error:
        yield Unsearched(location=location, reason=str(error))


def _remembered(known: Known) -> TableRef:
    return TableRef(name=known.name, format=known.format, location=known.location, catalog=known.catalog)


def _located(refs: Sequence[TableRef], location: str) -> TableRef | None:
    """The one of ``refs`` at ``location``, by its spelling or else by the directory that both lead to."""
    spelled = next((ref for ref in refs if ref.location == location), None)
    if spelled is not None or not is_local(location) or not os.path.isdir(location):
        return spelled
    place = place_of(location)
    return next((ref for ref in refs if is_local(ref.location) and place_of(ref.location) == place), None)


def _is_linked(location: str) -> bool:
    return is_local(location) and os.path.realpath(location) != location


def unique_end(word: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that ends in ``word`` after a dot, None without one. Raises CommandError for several."""
    ending = [name for name in names if name.endswith(f".{word}")]
    if len(ending) > 1:
        raise CommandError(USAGE, f"{word!r} is the end of {len(ending)} names: {', '.join(ending)}", tables=ending)
    return ending[0] if ending else None


def _is_path(word: str) -> bool:
    return "/" in word or word.startswith(("~", "."))


def _fixed_part(pattern: str) -> str:
    parts = pattern.split("/")
    fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:fixed]) or "/"


def under(location: str, path: str) -> bool:
    """Whether ``location`` is ``path`` or below it; a pattern covers what is below its fixed part."""
    root = _fixed_part(path) if is_local(path) and glob.has_magic(path) else path
    return location == root or location.startswith(root.rstrip("/") + "/")
