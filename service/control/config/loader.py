# SPDX-License-Identifier: Apache-2.0
"""The configuration from a TOML file and the environment: settings, rules for tables, and the origin of each value.

The file is the first of ``--config``, ``$LAKEFOLD_CONFIG``, ``./lakefold.toml`` and
``~/.config/lakefold/lakefold.toml``; all of its content is optional. ``LAKEFOLD_SECTION__KEY`` in the environment wins
over the file's sections. A matching ``[[tables]]`` rule wins over ``[defaults]``, whether these come from the file or
from the environment.
"""

import hashlib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

import lake.formats
from lake.capabilities import ListedInCatalog, ListedInMetastore
from lake.ports import TableFormat
from lake.redaction import is_secret
from service.control.config.costs import CostSettings, WorkSettings
from service.control.config.field_types import SettingsSection, StringMap, flatten
from service.control.config.former_settings import (
    RENAMED_KEYS,
    RenamedConflictError,
    former_keys,
    policy_notices,
    variables_with_present_names,
    with_present_names,
)
from service.control.config.http import HttpSettings
from service.control.config.notify import NotifySettings
from service.control.config.oidc import OidcSettings
from service.control.config.reads import ReadsSettings
from service.control.config.sections import DaemonSettings, DatabaseSettings, SourceSettings, TableRule
from service.control.config.telemetry import OpenLineageSettings, OpenTelemetrySettings
from service.problems import CONFIGURATION, ServiceError
from service.text import did_you_mean

FILE_NAME = "lakefold.toml"
ENV_PREFIX = "LAKEFOLD_"


class ConfigError(ServiceError):
    """The configuration can't be used: each of ``problems`` is one line with the place, the value and the remedy.

    ``rest`` is the configuration without the settings at fault, in which other problems can be found; None if there is
    no such configuration.
    """

    problem = CONFIGURATION

    def __init__(self, *problems: str, rest: "Config | None" = None) -> None:
        self.problems = tuple(sorted(dict.fromkeys(problems), key=_line_number))
        super().__init__("; ".join(self.problems))
        self.facts = {"problems": self.problems} if len(self.problems) > 1 else {}
        self.rest = rest


def _line_number(problem: str) -> int:
    """Return the line of the file in which a problem is; 0 for a problem elsewhere."""
    found = re.search(r":(\d+): ", problem)
    return int(found[1]) if found else 0


#: the sections with a fixed set of keys
SECTIONS: Mapping[str, type[SettingsSection]] = {
    "database": DatabaseSettings,
    "daemon": DaemonSettings,
    "cost": CostSettings,
    "work": WorkSettings,
    "reads": ReadsSettings,
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
    spark: StringMap = Field(default_factory=dict)
    sources: tuple[SourceSettings, ...] = ()
    defaults: dict[str, Any] = Field(default_factory=dict)
    tables: tuple[TableRule, ...] = ()
    daemon: DaemonSettings = Field(default_factory=DaemonSettings)
    cost: CostSettings = Field(default_factory=CostSettings)
    work: WorkSettings = Field(default_factory=WorkSettings)
    reads: ReadsSettings = Field(default_factory=ReadsSettings)
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
        assert isinstance(env_settings, EnvSettingsSource)
        env_settings.env_vars = variables_with_present_names(env_settings.env_vars, ENV_PREFIX, [])
        return env_settings, init_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Policy settings from one origin, as written there; later layers win.

    ``key_path`` locates the settings for ``find_line``. ``is_global`` is False for the settings of a rule or of a
    request.
    """

    origin: str
    settings: Mapping[str, Any]
    key_path: tuple[int | str, ...] = ()
    is_global: bool = True


def source_adapters(source: SourceSettings) -> list[TableFormat]:
    """Return the formats that tables of a source may have, by the way in which tables of each format are found."""
    if source.format is not None:
        return [lake.formats.load_format(source.format)]
    adapters = lake.formats.load_formats()
    if source.path is None and source.metastore is None:
        return adapters
    return [one for one in adapters if _is_searchable(one, in_metastore=source.metastore is not None)]


def catalog_listers(source: SourceSettings) -> "list[ListedInCatalog]":
    """Return the formats that list the source's catalog themselves, or none if only a Spark session can list it."""
    if source.catalog is None:
        return []
    adapters: list[Any] = source_adapters(source)
    return [one for one in adapters if isinstance(one, ListedInCatalog) and one.lists_catalog(source.catalog)]


def catalog_table_hint(formats: Iterable[TableFormat], location: str) -> str:
    """Say that a table below a local directory can only be listed by its catalog; '' if there is no such table."""
    for one in formats:
        if isinstance(one, ListedInCatalog) and (found := one.find_unlisted(location)) is not None:
            return f"{found} is a table of the format {one.name}, whose tables are read through their catalog"
    return ""


def _is_searchable(adapter: TableFormat, *, in_metastore: bool) -> bool:
    if isinstance(adapter, ListedInMetastore):
        return in_metastore or not adapter.is_metastore_only
    return not in_metastore


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration, validated. ``file`` is None if there is no file."""

    file: Path | None
    database: DatabaseSettings
    spark: Mapping[str, str] = field(repr=False)
    sources: tuple[SourceSettings, ...]
    table_rules: tuple[TableRule, ...]
    daemon: DaemonSettings
    cost: CostSettings
    work: WorkSettings
    reads: ReadsSettings
    notify: NotifySettings
    openlineage: OpenLineageSettings
    opentelemetry: OpenTelemetrySettings
    http: HttpSettings
    oidc: OidcSettings
    default_layers: tuple[Layer, ...]
    #: ``section.key`` → the origin of its value, for everything that was set outside ``[defaults]``
    origins: Mapping[str, str] = field(default_factory=dict)
    #: a line for each former name of a setting in file and environment, with its place and the present name
    renamed: tuple[str, ...] = ()
    #: identifies the file's content, as ``digest_of_file`` does; None if there is no file
    file_digest: str | None = None

    @property
    def formats(self) -> list[TableFormat]:
        """The formats that tables of the sources may have, by name."""
        found = {adapter.name: adapter for source in self.sources for adapter in source_adapters(source)}
        return [found[name] for name in sorted(found)] or lake.formats.load_formats()

    @property
    def file_name(self) -> str:
        """The file's name in messages."""
        return self.file.name if self.file else FILE_NAME

    def all_settings(self) -> Iterator[tuple[str, Any]]:
        """Yield every setting of all sections and rules as its name and typed value."""
        sections = (getattr(self, name) for name in SECTIONS)
        yield from chain(*sections, self.spark.items(), *(rule.write_options.items() for rule in self.table_rules))

    def rule_layer(self, number: int) -> Layer:
        """Return the policy settings of the rule with this index."""
        return Layer(
            origin=self.rule_origin(number),
            settings=self.table_rules[number].policy_settings,
            key_path=("tables", number),
            is_global=False,
        )

    def rule_origin(self, number: int) -> str:
        """Return the name of the rule with this index in messages: ``lakefold.toml [[tables]] #2 match "sales.*"``."""
        return f'{self.file_name} [[tables]] #{number + 1} match "{self.table_rules[number].match}"'


def with_resource_groups(config: Config, groups: Sequence[str]) -> Config:
    """Return ``config`` for a process that takes only plans of ``groups``. Raises ConfigError for a bad name."""
    try:
        daemon = DaemonSettings(**{**config.daemon.model_dump(), "resource_groups": tuple(groups)})
    except ValidationError as error:
        raise ConfigError(f"--resource-group: {error.errors()[0]['msg']}") from None
    return replace(config, daemon=daemon)


def find_config_file(explicit_path: Path | None = None) -> Path | None:
    """Return the path of the configuration file; None if there is no file.

    Raises ConfigError if ``--config`` or the environment names a file that does not exist.
    """
    by = "--config" if explicit_path else f"{ENV_PREFIX}CONFIG"
    if named := explicit_path or os.environ.get(f"{ENV_PREFIX}CONFIG"):
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(f"{by} names {path}, which is not a file")
        return path
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return next((path for path in (Path(FILE_NAME), config_home / "lakefold" / FILE_NAME) if path.is_file()), None)


def load_config(explicit_path: Path | None = None) -> Config:
    """Return the configuration of file and environment. Raises ConfigError with file, line and remedy."""
    path = find_config_file(explicit_path)
    text, document = _read_toml(path) if path else ("", {})
    return _build_config(path, text, document)


def load_config_for_source(source: Mapping[str, str], spark: Mapping[str, str]) -> Config:
    """Return the configuration of the environment with this one source and ``[spark]``. Raises ConfigError."""
    return _build_config(None, "", {"sources": [dict(source)], **({"spark": dict(spark)} if spark else {})})


def _build_config(path: Path | None, text: str, document: dict[str, Any]) -> Config:
    _check_environment_sections()
    try:
        document, notices = _rename_settings(document, path, text)
        settings = _Settings(**document)
    except RenamedConflictError as error:
        raise ConfigError(str(error)) from None
    except ValidationError as error:
        faults = error.errors()
        problems = (_describe_fault(fault, path, text) for fault in faults)
        raise ConfigError(*problems, rest=_config_without(faults, path, text, document)) from error
    except ValueError as error:  # invalid JSON in an environment variable
        raise ConfigError(f"environment: {' '.join(str(error).split())}") from error
    name = path.name if path else FILE_NAME
    environment = _environment_keys("DEFAULTS")
    in_file = flatten(document.get("defaults", {}))
    layers = (
        Layer(
            origin=f"{name} [defaults]",
            settings={k: v for k, v in in_file.items() if k not in environment},
            key_path=("defaults",),
        ),
        *(
            Layer(origin=f"env {variable}", settings={key: os.environ[variable]})
            for key, variable in sorted(environment.items())
        ),
    )
    spark = _spark_settings(settings.spark, name)
    return Config(
        file=path,
        spark=spark,
        sources=settings.sources,
        table_rules=settings.tables,
        **{name: getattr(settings, name) for name in SECTIONS},
        default_layers=tuple(layer for layer in layers if layer.settings),
        origins=_section_origins(document, name),
        renamed=(*notices, *_policy_notices(layers, settings.tables, path, text)),
        file_digest=_digest(text) if path else None,
    )


def digest_of_file(path: Path) -> str:
    """Return a digest of a configuration file's content. Raises OSError."""
    return _digest(path.read_text(encoding="utf-8", errors="replace"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _config_without(
    faults: Sequence[ErrorDetails], path: Path | None, text: str, document: Mapping[str, Any]
) -> Config | None:
    """Return the configuration without the settings at fault; None if some faults are outside of ``document``."""
    if not document:
        return None
    rest = dict(document)
    for section, *keys in (fault["loc"] for fault in faults):
        if section == "tables" and len(keys) > 1 and isinstance(rest.get("tables"), list):
            rules = list(rest["tables"])
            number, key = keys[:2]
            rules[int(number)] = {name: value for name, value in rules[int(number)].items() if name != key}
            rest["tables"] = [{"match": "", **rule} for rule in rules]  # a rule that is left out would renumber others
        elif keys and isinstance(rest.get(str(section)), Mapping):
            rest[str(section)] = {name: value for name, value in rest[str(section)].items() if name != keys[0]}
        else:
            rest.pop(str(section), None)
    try:
        return _build_config(path, text, rest)
    except ConfigError:
        return None


def _rename_settings(document: dict[str, Any], path: Path | None, text: str) -> tuple[dict[str, Any], list[str]]:
    """Return the document under the present names of settings, and the notices of file and environment.

    Raises RenamedConflictError if a setting has both of its names.
    """
    notices: list[str] = []
    renamed = {
        section: with_present_names(section, content, partial(_setting_place, path, text, (section,)), notices)
        if section in SECTIONS and isinstance(content, Mapping)
        else content
        for section, content in document.items()
    }
    variables_with_present_names({name.lower(): value for name, value in os.environ.items()}, ENV_PREFIX, notices)
    return renamed, notices


def _policy_notices(layers: Sequence[Layer], rules: Sequence[TableRule], path: Path | None, text: str) -> Iterator[str]:
    """Yield a notice for each former name of a policy setting in the defaults and the rules."""
    for layer in layers:
        yield from policy_notices(layer.settings, partial(_layer_place, layer, path, text))
    for number, rule in enumerate(rules):
        yield from policy_notices(rule.policy_settings, partial(_setting_place, path, text, ("tables", number)))


def _layer_place(layer: Layer, path: Path | None, text: str, key: str) -> str:
    return _setting_place(path, text, layer.key_path, key) if layer.key_path else layer.origin


def _setting_place(path: Path | None, text: str, section: tuple[int | str, ...], key: str) -> str:
    """Return the place of a setting in messages: its line in the file, or else its environment variable."""
    line = find_line(text, (*section, key))
    return f"{path}:{line}" if path and line else f"environment variable {ENV_PREFIX}{str(section[0]).upper()}"


def _read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, position = str(error).partition(" (at ")
        line = (
            position.removeprefix("line ").split(",")[0] if position.startswith("line") else str(len(text.splitlines()))
        )
        at = text.splitlines()[int(line) - 1 : int(line)]
        is_pasted = bool(at) and at[0].lstrip().startswith("spark.")
        hint = '; write a setting of Spark as "spark.key" = "value", with quotes' if is_pasted else ""
        raise ConfigError(f"{path}:{line}: not valid TOML: {reason}{hint}") from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{path}: can't be read: {why}") from error


def _environment_keys(section: str) -> dict[str, str]:
    """Return each key in ``section`` that a variable sets, with the name of the variable."""
    start = f"{ENV_PREFIX}{section}__"
    found = {
        name[len(start) :].lower(): name
        for name in os.environ
        if name.upper().startswith(start) and len(name) > len(start)
    }
    present = RENAMED_KEYS.get(section.lower(), {})
    return {present.get(key, key): name for key, name in found.items()}


def _check_environment_sections() -> None:
    """Raise ConfigError for a misspelt section in the environment, which would otherwise be ignored silently."""
    sections = {name.upper() for name in _Settings.model_fields}
    for variable in os.environ:
        section, nested, _ = variable.upper().removeprefix(ENV_PREFIX).partition("__")
        if variable.upper().startswith(ENV_PREFIX) and nested and section not in sections:
            raise ConfigError(
                f"environment variable {variable}: no section {section.lower()!r}"
                f"{did_you_mean(section.lower(), list(_Settings.model_fields))}"
            )


def _section_origins(document: Mapping[str, Any], name: str) -> dict[str, str]:
    origins: dict[str, str] = {}
    for section in ("spark", *SECTIONS):
        for key in flatten(document.get(section, {})):
            origins[f"{section}.{key}"] = f"{name} [{section}]"
        for key, variable in _environment_keys(section.upper()).items():
            origins[f"{section}.{key}"] = f"env {variable}"
    return origins


def _spark_settings(section: Mapping[str, str], name: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for key, value in section.items():
        if key == "master":
            settings["spark.master"] = value
        elif key.startswith(("spark.", "hoodie.")):
            settings[key] = value
        else:
            raise ConfigError(f'{name} [spark]: unknown key {key!r}; use master or a quoted "spark.…" setting')
    return settings


def _describe_fault(fault: ErrorDetails, path: Path | None, text: str) -> str:
    """Return a fault as one line: place, rule, value, and the nearest known name."""
    where = fault["loc"]
    variable = _environment_variable(where)
    dotted = _format_key_path(where)
    if variable:
        source = f"environment variable {variable}"
    else:
        line = find_line(text, where)
        source = f"{path}:{line}" if path and line else str(path or FILE_NAME)
    if fault["type"] == "extra_forbidden":
        return f"{source}: unknown key {dotted!r}{did_you_mean(str(where[-1]), _sibling_keys(where))}"
    if fault["type"] == "missing":
        return f"{source}: {dotted} is missing"
    message = fault["msg"].removeprefix("Value error, ")
    quotable = not isinstance(fault["input"], (Mapping, BaseModel)) and not _is_secret_setting(where)
    value = f" = {fault['input']!r}" if quotable else ""
    return f"{source}: {dotted}{value}: {message}"


def _is_secret_setting(key_path: tuple[int | str, ...]) -> bool:
    if any(is_secret(str(part)) for part in key_path):
        return True
    model = SECTIONS.get(str(key_path[0])) if len(key_path) > 1 else None
    known = model.model_fields.get(str(key_path[1])) if model else None
    return known is not None and SecretStr.__name__ in str(known.annotation)


def _format_key_path(key_path: tuple[int | str, ...]) -> str:
    words: list[str] = []
    for part in key_path:
        if isinstance(part, int):
            words[-1] = f"[[{words[-1]}]] #{part + 1}"
        else:
            words.append(part)
    return " ".join(words) if key_path and any(isinstance(part, int) for part in key_path) else ".".join(words)


def _environment_variable(key_path: tuple[int | str, ...]) -> str | None:
    if not key_path:
        return None
    section, *keys = map(str, key_path)
    spellings = [keys, *([old, *keys[1:]] for old in former_keys(section, keys[0]))] if keys else [keys]
    wanted = {f"{ENV_PREFIX}{'__'.join((section, *spelling))}".upper() for spelling in spellings}
    whole = f"{ENV_PREFIX}{section}".upper()
    return next((name for name in os.environ if name.upper() in {*wanted, whole}), None)


def _sibling_keys(key_path: tuple[int | str, ...]) -> list[str]:
    sections: dict[str, type[BaseModel]] = {"sources": SourceSettings, **SECTIONS}
    model = sections.get(str(key_path[0])) if len(key_path) > 1 else _Settings
    return list(model.model_fields) if model else []


def find_line(text: str, key_path: tuple[int | str, ...]) -> int | None:
    """Return the line of ``text`` that sets the key at ``key_path`` or opens its section; None if there is neither.

    The line may have a former name of the key.
    """
    section = str(key_path[0]) if key_path else ""
    index = next((part for part in key_path if isinstance(part, int)), None)
    key = str(key_path[-1]) if len(key_path) > 1 and isinstance(key_path[-1], str) else None
    spellings = {key, *former_keys(section, key)} if key is not None else set()
    element, inside, opened, nested = -1, False, None, ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.split("#")[0].strip()
        name = stripped.split("=")[0].strip(" \"'")
        if stripped.startswith("["):
            header = stripped.strip("[] ")
            element += stripped.startswith("[[") and header == section
            is_in_section = header == section or header.startswith(f"{section}.")
            inside = is_in_section and (index is None or element == index)
            opened = number if inside and opened is None else opened
            nested = header[len(section) + 1 :]
        elif (inside and spellings & {name, f"{nested}.{name}"}) or (
            key is None and opened is None and name == section
        ):
            return number
    return opened
