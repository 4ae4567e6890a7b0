# SPDX-License-Identifier: Apache-2.0
"""The settings of one table: defaults, then every matching ``[[tables]]`` rule in file order, then the request.

Each setting is identified by its policy field, whatever its spelling. So a rule's ``small_file_limit`` wins over a
pasted ``clustering.plan.strategy.small.file.limit`` of the defaults, and its origin shows this.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
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
from service.control.config.loader import Config, ConfigError, Layer, find_line
from service.control.config.renamed import conflict_text
from service.control.config.sections import Access
from service.modes import Mode
from service.problems import BAD_SETTING, ServiceError

REQUEST_ORIGIN = "request"
DEFAULT_ORIGIN = "default"
#: a key that describes its layer and sets no policy field
_DIALECT_KEY = "dialect"
#: policy fields of a table's objectives, which a request can't change
OBJECTIVE_FIELDS = frozenset(knob.name for knob in fields(TableSettings) if knob.name.startswith("slo_"))
#: policy fields that apply when an executor claims a plan, which a request can't change
CLAIM_TIME_FIELDS = frozenset(knob.name for knob in fields(TableSettings) if knob.name.startswith(("budget_", "run_")))
_COMBINED_KEYS = ("spark.hive.automerge.block.percent", "dfs.blocksize")
_RULE_KEYS = ("owner", "concurrency", "access", "sessions_refresh", "on_conflict", "write_options")
_RULE_ONLY_KEYS = ("mode", *_RULE_KEYS, "match")


class OverrideError(ServiceError):
    """A setting of a request can't be used; one line with the rule, the value and the setting to change."""

    problem = BAD_SETTING


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
    access: Access | None
    prices: Prices
    #: the waiting time that counts as much as a doubled saving per cost; 0 if the oldest plan runs first
    ageing: timedelta
    #: the budget of the plans of all tables together
    work_budget: Budget
    origins: Mapping[str, Origin]

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
        parts = (__version__, ref.location, ref.identity, writers, self.policy)
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
        access=access,
        prices=configured_prices(config),
        work_budget=global_budget(config),
        ageing=config.work.ageing if config.work.objective == OBJECTIVE_BENEFIT else timedelta(),
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
                raise _setting_error(config, layer, AUTOMERGE_ENABLED_KEY, str(error)) from error
    return ("off", off) if off else (mode, said_by)


def default_policy(config: Config) -> SizingPolicy:
    """Return the policy of a table that no rule matches. Raises ConfigError."""
    return _resolve_policy(config, list(config.default_layers))[0]


def global_settings(config: Config) -> GlobalSettings:
    """Return the settings that have one value for the whole service, from the defaults. Raises ConfigError."""
    return default_policy(config)


def check_rules(config: Config) -> None:
    """Raise ConfigError for the first rule that can't be used, whether or not it matches a table."""
    _check_supported(config, config.file_name, default_policy(config))
    for number, rule in enumerate(config.table_rules):
        sample = re.sub(r"\[!?(.)[^]]*]|[*?]", lambda match: match.group(1) or "x", rule.match)
        # Rules match by name alone, so any format will do.
        table = configure_table(config, TableRef(name=sample, format=FORMATS[0], location=f"/{sample}"))
        _check_supported(config, config.rule_origin(number), table.policy)


def _check_supported(config: Config, origin: str, policy: SizingPolicy) -> None:
    """Raise ConfigError for a setting that none of the sources' formats supports.

    A table of a format without the setting gets its error later, from ``unsupported_settings``.
    """
    # The refusal of the format with most capabilities is the most helpful one.
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
    """Return the policy of all layers together, and the origin of each of its fields."""
    chosen: dict[str, tuple[Origin, Layer]] = {}
    for layer in layers:
        for key, value in layer.settings.items():
            if key in _RULE_ONLY_KEYS:
                raise _setting_error(config, layer, key, f'{key} is set for tables: [[tables]] match = "…" {key} = …')
            if key == AUTOMERGE_ENABLED_KEY and layer.origin == REQUEST_ORIGIN:
                raise _setting_error(
                    config, layer, key, f"{key} is the mode of a table; it is set for tables, not by a request"
                )
            slot = policy_field(key) or key
            if slot in CLAIM_TIME_FIELDS and layer.origin == REQUEST_ORIGIN:
                raise _setting_error(
                    config, layer, key, f"{key} applies when a plan is claimed; it is set for tables, not here"
                )
            if slot in OBJECTIVE_FIELDS and layer.origin == REQUEST_ORIGIN:
                raise _setting_error(
                    config, layer, key, f"{key} is an objective of a table; it is set for tables, not here"
                )
            if slot in GLOBAL_FIELDS and not layer.is_global:
                raise _setting_error(config, layer, key, f"{key} has one value for all tables; set it in [defaults]")
            if slot in chosen and chosen[slot][1] is layer:
                for old in {key, chosen[slot][0].key} & FORMER_NAMES.keys():
                    raise _setting_error(config, layer, old, conflict_text(old, setting_name(slot)))
            chosen.pop(slot, None)  # with two spellings of a setting, the spelling of the later layer has to come last
            chosen[slot] = Origin(source=layer.origin, key=key, value=value), layer
    settings = {origin.key: origin.value for slot, (origin, _) in chosen.items() if slot != _DIALECT_KEY}
    dialect = chosen[_DIALECT_KEY][0] if _DIALECT_KEY in chosen else None
    try:
        policy = SizingPolicy.from_settings(settings, dialect=dialect.value if dialect else "spark")
    except PolicyError as error:
        if any(layer.origin == REQUEST_ORIGIN for layer in layers):
            _resolve_policy(
                config, [layer for layer in layers if layer.origin != REQUEST_ORIGIN]
            )  # raises if the fault is in the configuration
            raise OverrideError(str(error)) from error
        raise _locate_policy_error(config, chosen, error) from error
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


def _locate_policy_error(config: Config, chosen: Mapping[str, tuple[Origin, Layer]], error: PolicyError) -> Exception:
    """Return the error with the origins of the settings that its text names."""
    text = str(error)
    words = set(re.findall(r"[\w.]+", text))
    named = [
        (origin, layer)
        for slot, (origin, layer) in chosen.items()
        if origin.key in words
        or (slot in FIELD_PARSERS and setting_name(slot) in words)
        or (not re.fullmatch(r"[\w.]+", origin.key) and origin.key in text)  # not one word
    ]
    if len(named) == 1:
        origin, layer = named[0]
        return _setting_error(config, layer, origin.key, text)
    sources = "; ".join(f"{origin.key} from {origin.source}" for origin, _ in named)
    return ConfigError(f"{text}" + (f" ({sources})" if sources else ""))


def _setting_error(config: Config, layer: Layer, key: str, text: str) -> Exception:
    if layer.origin == REQUEST_ORIGIN:
        return OverrideError(text)
    if config.file is None or not layer.key_path:
        return ConfigError(f"{layer.origin}: {text}")
    line = find_line(config.file.read_text(encoding="utf-8"), (*layer.key_path, key))
    return ConfigError(f"{config.file}:{line}: {text}" if line else f"{layer.origin}: {text}")
