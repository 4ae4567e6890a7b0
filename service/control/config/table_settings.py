# SPDX-License-Identifier: Apache-2.0
"""The settings of one table: defaults, then every matching ``[[tables]]`` rule in file order, then the request.

Each setting is identified by its policy field, whatever its spelling. So a rule's ``small_file_limit`` wins over a
pasted ``clustering.plan.strategy.small.file.limit`` of the defaults, and its origin shows this.
"""

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from lake.formats import FORMATS, load_format
from lake.model import Concurrency, OnConflict, TableRef
from lake.ports import TableFormat
from lake.version import __version__
from planner.budgets import Budget
from planner.cost import Prices
from planner.policy.aliases import ALIASES, AUTOMERGE_ENABLED_KEY, FORMER_NAMES, is_disabled_by_automerge
from planner.policy.compatibility import unsupported_settings
from planner.policy.fields import GLOBAL_FIELDS, GlobalSettings, TableSettings
from planner.policy.policy import DEFAULTS, FIELD_PARSERS, PolicyError, SizingPolicy, field_name_of_key, setting_name
from service.control.config.costs import OBJECTIVE_BENEFIT
from service.control.config.former_settings import conflict_text
from service.control.config.loader import Config, ConfigError, Layer, find_line
from service.control.config.sections import Access
from service.modes import Mode
from service.problems import BAD_SETTING, ServiceError
from service.text import did_you_mean

REQUEST_ORIGIN = "request"
DEFAULT_ORIGIN = "default"
#: a key that describes its layer and sets no policy field
_DIALECT_KEY = "dialect"
#: policy fields of a table's objectives, which a request can't change
OBJECTIVE_FIELDS = frozenset(knob.name for knob in fields(TableSettings) if knob.name.startswith("slo_"))
#: policy fields that apply when an executor claims a plan, which a request can't change
CLAIM_TIME_FIELDS = frozenset(knob.name for knob in fields(TableSettings) if knob.name.startswith(("budget_", "run_")))
_COMBINED_KEYS = ("spark.hive.automerge.block.percent", "dfs.blocksize")
_RULE_KEYS = (
    "owner",
    "tags",
    "resource_group",
    "concurrency",
    "access",
    "sessions_refresh",
    "on_conflict",
    "write_options",
)
_RULE_ONLY_KEYS = ("mode", *_RULE_KEYS, "match")


class OverrideError(ServiceError):
    """Settings of a request can't be used; one line with each rule, the value and the setting to change."""

    problem = BAD_SETTING


#: a setting that its layer must not have: the layer, the key, and the reason
_Refusal = tuple[Layer, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of a policy field's value, and the key and value as written there; both empty for a default."""

    source: str
    key: str = ""
    value: Any = None


@dataclass(frozen=True, kw_only=True)  # without slots: some properties are cached
class ConfiguredTable:
    """A table with all of its configuration. ``origins`` has every policy field and ``mode``."""

    ref: TableRef
    policy: SizingPolicy
    mode: Mode
    owner: str | None
    #: in alphabetical order
    tags: tuple[str, ...]
    #: None for the group ``default``
    resource_group: str | None
    access: Access | None
    prices: Prices
    #: the waiting time that counts as much as a doubled saving per cost; 0 if the oldest plan runs first
    ageing: timedelta
    #: the budget of the plans of all tables together
    work_budget: Budget
    origins: Mapping[str, Origin]
    #: the time whose observed reads give the rate of reads
    reads_window: timedelta
    #: the configured rate of reads if ``policy`` has the observed one, else None
    configured_reads_per_day: float | None = None

    @property
    def has_observed_reads(self) -> bool:
        """True if the policy has the observed rate of reads."""
        return self.configured_reads_per_day is not None

    @property
    def name(self) -> str:
        """The table's unique name."""
        return self.ref.name

    @cached_property
    def settings_digest(self) -> str:
        """A digest of everything besides its files that determines a plan of the table."""
        ref = self.ref
        access = self.access, ref.sessions_refresh
        writers = ref.concurrency, ref.on_conflict, access, sorted(ref.write_options.items())
        configured = self.configured_reads_per_day  # an observed rate changes all the time
        policy = self.policy if configured is None else replace(self.policy, reads_per_day=configured)
        parts = (__version__, ref.location, ref.identity, writers, policy)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    @cached_property
    def adapter(self) -> TableFormat:
        """The adapter of the table's format, resolved at its first use. Raises Rejected for an unknown format.

        So tables of a format that this process does not have can still be listed.
        """
        return load_format(self.ref.format)


def matching_rules(config: Config, name: str) -> Iterator[int]:
    """Yield the indices of the rules that match a table's name, in file order."""
    return (number for number, rule in enumerate(config.table_rules) if fnmatchcase(name, rule.match))


def configure_table(config: Config, ref: TableRef, overrides: Mapping[str, Any] | None = None) -> ConfiguredTable:
    """Return ``ref`` with the rules applied, ``overrides`` of a request last.

    Raises ConfigError for a bad setting of file or environment, OverrideError for a bad override.
    """
    owner: str | None = None
    tags: set[str] = set()
    resource_group: str | None = None
    access: Access | None = None
    sessions_refresh = ref.sessions_refresh
    concurrency, on_conflict, write_options = ref.concurrency, ref.on_conflict, dict(ref.write_options)
    layers = list(config.default_layers)
    modes: list[Mode | None] = [None] * len(layers)
    places = dict.fromkeys(_RULE_KEYS, DEFAULT_ORIGIN)
    for number in matching_rules(config, ref.name):
        rule, origin = config.table_rules[number], config.rule_origin(number)
        layers.append(config.rule_layer(number))
        modes.append(rule.mode)
        if rule.owner is not None:
            owner, places["owner"] = rule.owner, origin
        if rule.tags:
            tags.update(rule.tags)
            places["tags"] = origin
        if rule.resource_group is not None:
            resource_group, places["resource_group"] = rule.resource_group, origin
        if rule.concurrency is not None:
            concurrency, places["concurrency"] = Concurrency(rule.concurrency), origin
        if rule.access is not None:
            access, places["access"] = rule.access, origin
        if rule.sessions_refresh is not None:
            sessions_refresh, places["sessions_refresh"] = rule.sessions_refresh, origin
        if rule.on_conflict is not None:
            on_conflict, places["on_conflict"] = OnConflict(rule.on_conflict), origin
        if rule.write_options:
            write_options |= rule.write_options
            places["write_options"] = origin
    mode, said_by = _resolve_mode(config, layers, modes)
    if overrides:
        layers.append(Layer(origin=REQUEST_ORIGIN, settings=dict(overrides), is_global=False))
    policy, origins = _resolve_policy(config, layers)
    return ConfiguredTable(
        ref=replace(
            ref,
            concurrency=concurrency,
            sessions_refresh=sessions_refresh,
            on_conflict=on_conflict,
            write_options=write_options,
        ),
        policy=policy,
        mode=mode,
        owner=owner,
        tags=tuple(sorted(tags)),
        resource_group=resource_group,
        access=access,
        prices=configured_prices(config),
        work_budget=global_budget(config),
        ageing=config.work.ageing if config.work.objective == OBJECTIVE_BENEFIT else timedelta(),
        reads_window=config.reads.window,
        origins=origins | {"mode": said_by} | {key: Origin(source=origin) for key, origin in places.items()},
    )


def configured_prices(config: Config) -> Prices:
    """Return the prices for the plans of every table."""
    cost = config.cost
    return Prices(
        cpu_hour=cost.cpu_hour, request_1000=cost.request_1000, gib_month=cost.gib_month, currency=cost.currency
    )


def global_budget(config: Config) -> Budget:
    """Return the budget of all tables together."""
    work = config.work
    return Budget.from_settings(
        work.bytes_per_hour, work.bytes_per_day, work.cpu_hours_per_hour, work.cpu_hours_per_day
    )


def _resolve_mode(config: Config, layers: Sequence[Layer], modes: Sequence[Mode | None]) -> tuple[Mode, Origin]:
    """Return the mode of the last layer that sets one, with its origin.

    A layer sets the mode as ``mode`` or by Spark's switch, which turns a table off and on.
    """
    mode: Mode = "observe"
    said_by, off = Origin(source=DEFAULT_ORIGIN), None
    for layer, said in zip(layers, modes, strict=True):
        if said is not None:
            mode, said_by, off = said, Origin(source=layer.origin), None
        elif AUTOMERGE_ENABLED_KEY in layer.settings:
            value = layer.settings[AUTOMERGE_ENABLED_KEY]
            try:
                off = (
                    Origin(source=layer.origin, key=AUTOMERGE_ENABLED_KEY, value=value)
                    if is_disabled_by_automerge(value)
                    else None
                )
            except ValueError as error:
                raise ConfigError(_locate_setting(config, layer, AUTOMERGE_ENABLED_KEY, str(error))) from error
    return ("off", off) if off else (mode, said_by)


def default_policy(config: Config) -> SizingPolicy:
    """Return the policy of a table that no rule matches. Raises ConfigError."""
    return _resolve_policy(config, list(config.default_layers))[0]


def global_settings(config: Config) -> GlobalSettings:
    """Return the settings that have one value for the whole service, from the defaults. Raises ConfigError."""
    return default_policy(config)


def check_rules(config: Config) -> None:
    """Raise ConfigError with the problems of the defaults and of all rules, whether or not they match a table."""
    problems: list[str] = []
    for number in (None, *range(len(config.table_rules))):
        try:
            _check_rule(config, number)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)


def _check_rule(config: Config, number: int | None) -> None:
    """Raise ConfigError if the rule with this index, or with None the defaults, can't be used."""
    if number is None:
        _check_supported(config, config.file_name, default_policy(config))
        return
    sample = re.sub(r"\[!?(.)[^]]*]|[*?]", lambda match: match.group(1) or "x", config.table_rules[number].match)
    # Rules match by name alone, so any format will do.
    table = configure_table(config, TableRef(name=sample, format=FORMATS[0], location=f"/{sample}"))
    _check_supported(config, config.rule_origin(number), table.policy)


def unmatched_rules(config: Config, names: Collection[str]) -> dict[str, str]:
    """Return the rules that match none of the tables ``names``, each with a line that has the most similar name."""
    matched = {number for name in names for number in matching_rules(config, name)}
    return {
        origin: f"{origin} matches no table{did_you_mean(rule.match, names)}"
        for number, rule in enumerate(config.table_rules)
        if number not in matched
        for origin in (config.rule_origin(number),)
    }


def _check_supported(config: Config, origin: str, policy: SizingPolicy) -> None:
    """Raise ConfigError for a setting that none of the sources' formats supports.

    A table of a format without the setting gets its error later, from ``unsupported_settings``.
    """
    # The refusal of the format with the most capabilities is the most helpful one.
    found = sorted(config.formats, key=lambda adapter: -len(adapter.capabilities))
    refused = [next(unsupported_settings(policy, adapter), None) for adapter in found]
    if all(refused):
        raise ConfigError(f"{origin}: {refused[0]}")


def policy_field(key: str) -> str | None:
    """Return the policy field that ``key`` sets under any spelling; None if it sets none by itself."""
    if key in ALIASES:
        return ALIASES[key].field_name
    return next((knob for knob in (key, f"{key}_bytes", field_name_of_key(key)) if knob in FIELD_PARSERS), None)


def _resolve_policy(config: Config, layers: list[Layer]) -> tuple[SizingPolicy, dict[str, Origin]]:
    """Return the policy of all layers together, and the origin of each of its fields.

    Raises ConfigError with every problem of the configuration, or OverrideError with every problem of a request.
    """
    chosen: dict[str, tuple[Origin, Layer]] = {}
    refused: list[_Refusal] = []
    for layer in layers:
        for key, value in layer.settings.items():
            slot = policy_field(key) or key
            if (text := _layer_refusal(layer, key, slot)) is not None:
                refused.append((layer, key, text))
                continue
            if slot in chosen and chosen[slot][1] is layer:
                both = {key, chosen[slot][0].key} & FORMER_NAMES.keys()
                refused += [(layer, old, conflict_text(old, setting_name(slot))) for old in both]
            chosen.pop(slot, None)  # with two spellings of a setting, the spelling of the later layer has to come last
            chosen[slot] = Origin(source=layer.origin, key=key, value=value), layer
    settings = {origin.key: origin.value for slot, (origin, _) in chosen.items() if slot != _DIALECT_KEY}
    dialect = chosen[_DIALECT_KEY][0] if _DIALECT_KEY in chosen else None
    problems: Sequence[str] = ()
    try:
        policy = SizingPolicy.from_settings(settings, dialect=dialect.value if dialect else "spark")
    except PolicyError as error:
        problems = error.problems
    if refused or problems:
        if any(layer.origin == REQUEST_ORIGIN for layer in layers):
            _resolve_policy(
                config, [layer for layer in layers if layer.origin != REQUEST_ORIGIN]
            )  # raises if the fault is in the configuration
            raise OverrideError("; ".join((*(text for _, _, text in refused), *problems)))
        raise ConfigError(
            *(_locate_setting(config, *refusal) for refusal in refused),
            *(_locate_policy_problem(config, chosen, problem) for problem in problems),
        )
    origins = {}
    for knob in FIELD_PARSERS:
        if knob in chosen:
            origins[knob] = chosen[knob][0]
        elif getattr(policy, knob) == DEFAULTS[knob]:
            origins[knob] = Origin(source=DEFAULT_ORIGIN)
        else:  # set by a combination of keys, or by the dialect
            together = [
                origin for slot, (origin, _) in chosen.items() if slot not in FIELD_PARSERS and slot in _COMBINED_KEYS
            ]
            origins[knob] = (together or [dialect or Origin(source=DEFAULT_ORIGIN)])[0]
    return policy, origins


def _layer_refusal(layer: Layer, key: str, slot: str) -> str | None:
    """Return why ``key``, which sets the field ``slot``, is not for this layer; None if it may be set there."""
    if key in _RULE_ONLY_KEYS:
        return f'{key} is set for tables: [[tables]] match = "…" {key} = …'
    if slot in GLOBAL_FIELDS and not layer.is_global:
        return f"{key} has one value for all tables; set it in [defaults]"
    if layer.origin != REQUEST_ORIGIN:
        return None
    if key == AUTOMERGE_ENABLED_KEY:
        return f"{key} is the mode of a table; it is set for tables, not by a request"
    if slot in CLAIM_TIME_FIELDS:
        return f"{key} applies when a plan is claimed; it is set for tables, not here"
    if slot in OBJECTIVE_FIELDS:
        return f"{key} is an objective of a table; it is set for tables, not here"
    return None


def _locate_policy_problem(config: Config, chosen: Mapping[str, tuple[Origin, Layer]], text: str) -> str:
    """Return the problem with the places of the settings that its text names."""
    words = set(re.findall(r"[\w.]+", text))
    named = [
        (origin, layer)
        for slot, (origin, layer) in chosen.items()
        if origin.key in words
        or (slot in FIELD_PARSERS and setting_name(slot) in words)
        or (not re.fullmatch(r"[\w.]+", origin.key) and origin.key in text)  # not one word
    ]
    if not named:
        return text
    if len(named) > 1:
        text += f" ({'; '.join(f'{origin.key} from {origin.source}' for origin, _ in named)})"
    # If the text names several settings, use the place of the last one: it has the highest precedence.
    origin, layer = named[-1]
    return _locate_setting(config, layer, origin.key, text)


def _locate_setting(config: Config, layer: Layer, key: str, text: str) -> str:
    """Return ``text`` with the place of the setting in front: its line in the file, or the name of its layer."""
    if config.file is None or not layer.key_path:
        return f"{layer.origin}: {text}"
    line = find_line(config.file.read_text(encoding="utf-8"), (*layer.key_path, key))
    return f"{config.file}:{line}: {text}" if line else f"{layer.origin}: {text}"
