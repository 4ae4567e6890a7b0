# SPDX-License-Identifier: Apache-2.0
"""The configuration: one TOML file, environment over it, rules for tables; each value knows where it came from.

The file is the first of ``--config``, ``$LAKEFOLD_CONFIG``, ``./lakefold.toml`` and
``~/.config/lakefold/lakefold.toml``; all of it is optional. ``LAKEFOLD_SECTION__KEY`` in the environment wins over
the file's sections, and a matching ``[[tables]]`` rule wins over ``[defaults]``, from wherever those came.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

import lake.formats
from lake.optional import FoundInMetastore
from lake.ports import TableFormat
from lake.redaction import is_secret
from service.config.costs import CostSettings, WorkSettings
from service.config.http import HttpSettings
from service.config.notify import NotifySettings
from service.config.oidc import OidcSettings
from service.config.sections import DaemonSettings, DatabaseSettings, Source, TableRule
from service.config.telemetry import OpenLineageSettings, OpenTelemetrySettings
from service.config.values import Section, Texts, flatten
from service.problems import CONFIGURATION, ServiceError
from service.text import nearest

FILE_NAME = "lakefold.toml"
ENV_PREFIX = "LAKEFOLD_"


class ConfigError(ServiceError):
    """The configuration can't be used; one line that names the place, the value and the remedy."""

    problem = CONFIGURATION


#: the sections that are one table of known keys
SECTIONS: Mapping[str, type[Section]] = {
    "database": DatabaseSettings,
    "daemon": DaemonSettings,
    "cost": CostSettings,
    "work": WorkSettings,
    "notify": NotifySettings,
    "http": HttpSettings,
    "oidc": OidcSettings,
    "openlineage": OpenLineageSettings,
    "opentelemetry": OpenTelemetrySettings,
}


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        case_sensitive=False,
        hide_input_in_errors=True,
    )

    database: DatabaseSettings = Field(default_factory=DatabaseSettings)
    spark: Texts = Field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    defaults: dict[str, Any] = Field(default_factory=dict)
    tables: tuple[TableRule, ...] = ()
    daemon: DaemonSettings = Field(default_factory=DaemonSettings)
    cost: CostSettings = Field(default_factory=CostSettings)
    work: WorkSettings = Field(default_factory=WorkSettings)
    notify: NotifySettings = Field(default_factory=NotifySettings)
    openlineage: OpenLineageSettings = Field(default_factory=OpenLineageSettings)
    opentelemetry: OpenTelemetrySettings = Field(default_factory=OpenTelemetrySettings)
    http: HttpSettings = Field(default_factory=HttpSettings)
    oidc: OidcSettings = Field(default_factory=OidcSettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Policy settings from one place, as written there. Later layers win. ``where`` leads ``line_of`` to the place.

    ``for_all_tables`` is False where the settings are those of a rule or of a request.
    """

    origin: str
    settings: Mapping[str, Any]
    where: tuple[int | str, ...] = ()
    for_all_tables: bool = True


def formats_of(source: Source) -> tuple[str, ...]:
    """Formats that tables of a source may have, by how they are found there."""
    if source.format is not None:
        return (source.format,)
    if source.path is None and source.metastore is None:
        return lake.formats.FORMATS
    in_metastore = source.metastore is not None
    adapters = map(lake.formats.load_format, lake.formats.FORMATS)
    return tuple(adapter.name for adapter in adapters if _may_be_found(adapter, in_metastore=in_metastore))


def _may_be_found(adapter: TableFormat, *, in_metastore: bool) -> bool:
    if isinstance(adapter, FoundInMetastore):
        return in_metastore or not adapter.only_in_metastore
    return not in_metastore


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything the service was told, validated. ``file`` is None where there was no file."""

    file: Path | None
    database: DatabaseSettings
    spark: Mapping[str, str] = field(repr=False)
    sources: tuple[Source, ...]
    tables: tuple[TableRule, ...]
    daemon: DaemonSettings
    cost: CostSettings
    work: WorkSettings
    notify: NotifySettings
    openlineage: OpenLineageSettings
    opentelemetry: OpenTelemetrySettings
    http: HttpSettings
    oidc: OidcSettings
    default_layers: tuple[Layer, ...]
    #: ``section.key`` → where its value came from, for everything that was set outside ``[defaults]``
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats that tables of the sources may have."""
        found = {name for source in self.sources for name in formats_of(source)}
        return tuple(sorted(found)) if found else lake.formats.FORMATS

    @property
    def file_name(self) -> str:
        """How messages call the file."""
        return self.file.name if self.file else FILE_NAME

    def settings(self) -> Iterator[tuple[str, Any]]:
        """Every setting by its name, those of all sections and rules, as typed values."""
        sections = (getattr(self, name) for name in SECTIONS)
        yield from chain(*sections, self.spark.items(), *(rule.write_options.items() for rule in self.tables))

    def rule_layer(self, number: int) -> Layer:
        """The knobs of the rule with this index."""
        return Layer(
            origin=self.rule_origin(number),
            settings=self.tables[number].knobs,
            where=("tables", number),
            for_all_tables=False,
        )

    def rule_origin(self, number: int) -> str:
        """How messages call the rule with this index, such as ``lakefold.toml [[tables]] #2 match "sales.*"``."""
        return f'{self.file_name} [[tables]] #{number + 1} match "{self.tables[number].match}"'


def find_file(chosen: Path | None = None) -> Path | None:
    """The configuration file in force; ConfigError where one was named that does not exist."""
    by = "--config" if chosen else f"{ENV_PREFIX}CONFIG"
    if named := chosen or os.environ.get(f"{ENV_PREFIX}CONFIG"):
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(f"{by} names {path}, which is not a file")
        return path
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return next((path for path in (Path(FILE_NAME), home / "lakefold" / FILE_NAME) if path.is_file()), None)


def load(chosen: Path | None = None) -> Config:
    """The configuration of file and environment. Raises ConfigError with file, line and remedy."""
    path = find_file(chosen)
    text, document = _read(path) if path else ("", {})
    return _config(path, text, document)


def load_source(source: Mapping[str, str]) -> Config:
    """The configuration of the environment alone, with this one source. Raises ConfigError."""
    return _config(None, "", {"sources": [dict(source)]})


def _config(path: Path | None, text: str, document: dict[str, Any]) -> Config:
    _known_environment()
    try:
        settings = _Settings(**document)
    except ValidationError as error:
        raise ConfigError(_explain(error, path, text)) from error
    except ValueError as error:  # the environment's JSON
        raise ConfigError(f"environment: {' '.join(str(error).split())}") from error
    name = path.name if path else FILE_NAME
    environment = _environment_keys("DEFAULTS")
    in_file = flatten(document.get("defaults", {}))
    layers = (
        Layer(
            origin=f"{name} [defaults]",
            settings={k: v for k, v in in_file.items() if k not in environment},
            where=("defaults",),
        ),
        *(
            Layer(origin=f"env {variable}", settings={key: os.environ[variable]})
            for key, variable in sorted(environment.items())
        ),
    )
    spark = _spark(settings.spark, name)
    return Config(
        file=path,
        database=settings.database,
        spark=spark,
        sources=settings.sources,
        tables=settings.tables,
        daemon=settings.daemon,
        cost=settings.cost,
        work=settings.work,
        notify=settings.notify,
        openlineage=settings.openlineage,
        opentelemetry=settings.opentelemetry,
        http=settings.http,
        oidc=settings.oidc,
        default_layers=tuple(layer for layer in layers if layer.settings),
        origins=_section_origins(document, name),
    )


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, place = str(error).partition(" (at ")
        line = place.removeprefix("line ").split(",")[0] if place.startswith("line") else str(len(text.splitlines()))
        raise ConfigError(f"{path}:{line}: not valid TOML: {reason}") from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{path}: can't be read: {why}") from error


def _environment_keys(section: str) -> dict[str, str]:
    """Key in ``section`` → the variable that sets it."""
    start = f"{ENV_PREFIX}{section}__"
    return {
        name[len(start) :].lower(): name
        for name in os.environ
        if name.upper().startswith(start) and len(name) > len(start)
    }


def _known_environment() -> None:
    """A misspelt section in the environment would otherwise be ignored without a word."""
    sections = {name.upper() for name in _Settings.model_fields}
    for variable in os.environ:
        section, nested, _ = variable.upper().removeprefix(ENV_PREFIX).partition("__")
        if variable.upper().startswith(ENV_PREFIX) and nested and section not in sections:
            raise ConfigError(
                f"environment variable {variable}: no section {section.lower()!r}"
                f"{nearest(section.lower(), list(_Settings.model_fields))}"
            )


def _section_origins(document: Mapping[str, Any], name: str) -> dict[str, str]:
    origins: dict[str, str] = {}
    for section in ("spark", *SECTIONS):
        for key in flatten(document.get(section, {})):
            origins[f"{section}.{key}"] = f"{name} [{section}]"
        for key, variable in _environment_keys(section.upper()).items():
            origins[f"{section}.{key}"] = f"env {variable}"
    return origins


def _spark(section: Mapping[str, str], name: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for key, value in section.items():
        if key == "master":
            settings["spark.master"] = value
        elif key.startswith(("spark.", "hoodie.")):
            settings[key] = value
        else:
            raise ConfigError(f'{name} [spark]: unknown key {key!r}; use master or a quoted "spark.…" setting')
    return settings


def _explain(error: ValidationError, path: Path | None, text: str) -> str:
    """The first fault as one line: place, rule, value, nearest name."""
    first = error.errors()[0]
    where = first["loc"]
    variable = _variable(where)
    dotted = _dotted(where)
    if variable:
        place = f"environment variable {variable}"
    else:
        line = line_of(text, where)
        place = f"{path}:{line}" if path and line else str(path or FILE_NAME)
    if first["type"] == "extra_forbidden":
        return f"{place}: unknown key {dotted!r}{nearest(str(where[-1]), _siblings(where))}"
    if first["type"] == "missing":
        return f"{place}: {dotted} is missing"
    message = first["msg"].removeprefix("Value error, ")
    quotable = not isinstance(first["input"], (Mapping, BaseModel)) and not _holds_secret(where)
    value = f" = {first['input']!r}" if quotable else ""
    return f"{place}: {dotted}{value}: {message}"


def _holds_secret(where: tuple[int | str, ...]) -> bool:
    if any(is_secret(str(part)) for part in where):
        return True
    model = SECTIONS.get(str(where[0])) if len(where) > 1 else None
    known = model.model_fields.get(str(where[1])) if model else None
    return known is not None and SecretStr.__name__ in str(known.annotation)


def _dotted(where: tuple[int | str, ...]) -> str:
    words: list[str] = []
    for part in where:
        if isinstance(part, int):
            words[-1] = f"[[{words[-1]}]] #{part + 1}"
        else:
            words.append(part)
    return " ".join(words) if where and any(isinstance(part, int) for part in where) else ".".join(words)


def _variable(where: tuple[int | str, ...]) -> str | None:
    if not where:
        return None
    wanted = ENV_PREFIX + "__".join(str(part) for part in where).upper()
    whole = ENV_PREFIX + str(where[0]).upper()
    return next((name for name in os.environ if name.upper() in (wanted, whole)), None)


def _siblings(where: tuple[int | str, ...]) -> list[str]:
    sections: dict[str, type[BaseModel]] = {"sources": Source, **SECTIONS}
    model = sections.get(str(where[0])) if len(where) > 1 else _Settings
    return list(model.model_fields) if model else []


def line_of(text: str, where: tuple[int | str, ...]) -> int | None:
    """The line of ``text`` that sets the key at ``where``, or that opens its section; None when neither is found."""
    section = str(where[0]) if where else ""
    index = next((part for part in where if isinstance(part, int)), None)
    key = str(where[-1]) if len(where) > 1 and isinstance(where[-1], str) else None
    element, inside, opened, nested = -1, False, None, ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.split("#")[0].strip()
        name = stripped.split("=")[0].strip(" \"'")
        if stripped.startswith("["):
            header = stripped.strip("[] ")
            element += stripped.startswith("[[") and header == section
            ours = header == section or header.startswith(f"{section}.")
            inside = ours and (index is None or element == index)
            opened = number if inside and opened is None else opened
            nested = header[len(section) + 1 :]
        elif (inside and key is not None and key in (name, f"{nested}.{name}")) or (
            key is None and opened is None and name == section
        ):
            return number
    return opened
