# SPDX-License-Identifier: Apache-2.0
"""The settings of one table: defaults, then every matching ``[[tables]]`` rule in file order, then the request.

Each setting is known by its knob, whatever spelling it was written in, so that a rule's ``small_file_limit`` wins
over a pasted ``clustering.plan.strategy.small.file.limit`` of the defaults, and its origin says so.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

from lake.formats import FORMATS, load_format
from lake.model import Concurrency, OnConflict, TableRef
from planner.aliases import ALIASES, SWITCH, switches_off
from planner.budgets import Budget
from planner.cost import Prices
from planner.knobs import FOR_ALL_TABLES, Care, ForAllTables
from planner.offers import not_offered
from planner.policy import DEFAULTS, KNOBS, PolicyError, SizingPolicy, own_name, setting_name
from service.config.costs import WORTH
from service.config.loader import Config, ConfigError, Layer, line_of
from service.config.sections import Access
from service.modes import Mode
from service.problems import SETTING, ServiceError

REQUEST = "request"
DEFAULT = "default"
#: keys of a layer that say something about it instead of setting a knob
_DIALECT = "dialect"
#: knobs of what a table is held to, whoever asks for plans
OBJECTIVES = frozenset(knob.name for knob in fields(Care) if knob.name.startswith("slo_"))
#: knobs that hold when an executor takes a plan, whoever asked for it
WHEN_TAKEN = frozenset(knob.name for knob in fields(Care) if knob.name.startswith(("budget_", "run_")))
_TOGETHER = ("spark.hive.automerge.block.percent", "dfs.blocksize")
_IN_RULES = ("owner", "concurrency", "access", "sessions_refresh", "on_conflict", "write_options")
_ONLY_IN_RULES = ("mode", *_IN_RULES, "match")


class OverrideError(ServiceError):
    """A setting of a request can't be used; one line with the rule, the value and the setting to change."""

    problem = SETTING


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the value of a knob came from, and the key and value as written there; both empty for a default."""

    place: str
    key: str = ""
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredTable:
    """A table with everything the configuration says about it. ``origins`` has every policy field and ``mode``."""

    ref: TableRef
    policy: SizingPolicy
    mode: Mode
    owner: str | None
    access: Access | None
    prices: Prices
    #: how long waiting counts as much as a doubling of what a plan saves for its cost; 0 where the oldest goes first
    ageing: timedelta
    #: what the plans of all tables together may use
    work_budget: Budget
    origins: Mapping[str, Origin]

    @property
    def name(self) -> str:
        """The table's unique name."""
        return self.ref.name


def matching(config: Config, name: str) -> Iterator[int]:
    """Indices of the rules that match a table's name, in file order."""
    return (number for number, rule in enumerate(config.tables) if fnmatchcase(name, rule.match))


def configure(config: Config, ref: TableRef, overrides: Mapping[str, Any] | None = None) -> ConfiguredTable:
    """Apply the rules to ``ref``, ``overrides`` of a request last.

    Raises ConfigError for a bad setting of file or environment, OverrideError for a bad override.
    """
    owner: str | None = None
    access: Access | None = None
    sessions_refresh = ref.sessions_refresh
    concurrency, on_conflict, write_options = ref.concurrency, ref.on_conflict, dict(ref.write_options)
    layers = list(config.default_layers)
    modes: list[Mode | None] = [None] * len(layers)
    places = dict.fromkeys(_IN_RULES, DEFAULT)
    for number in matching(config, ref.name):
        rule, place = config.tables[number], config.rule_origin(number)
        layers.append(config.rule_layer(number))
        modes.append(rule.mode)
        if rule.owner is not None:
            owner, places["owner"] = rule.owner, place
        if rule.concurrency is not None:
            concurrency, places["concurrency"] = Concurrency(rule.concurrency), place
        if rule.access is not None:
            access, places["access"] = rule.access, place
        if rule.sessions_refresh is not None:
            sessions_refresh, places["sessions_refresh"] = rule.sessions_refresh, place
        if rule.on_conflict is not None:
            on_conflict, places["on_conflict"] = OnConflict(rule.on_conflict), place
        if rule.write_options:
            write_options |= rule.write_options
            places["write_options"] = place
    mode, said_by = _mode(config, layers, modes)
    if overrides:
        layers.append(Layer(origin=REQUEST, settings=dict(overrides), for_all_tables=False))
    policy, origins = _policy(config, layers)
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
        prices=prices(config),
        work_budget=budget_of(config),
        ageing=config.work.ageing if config.work.objective == WORTH else timedelta(),
        origins=origins | {"mode": said_by} | {key: Origin(place=place) for key, place in places.items()},
    )


def prices(config: Config) -> Prices:
    """What plans of every table are priced by."""
    cost = config.cost
    return Prices(
        cpu_hour=cost.cpu_hour, request_1000=cost.request_1000, gib_month=cost.gib_month, currency=cost.currency
    )


def budget_of(config: Config) -> Budget:
    """The budget of all tables together."""
    work = config.work
    return Budget.of(work.bytes_per_hour, work.bytes_per_day, work.cpu_hours_per_hour, work.cpu_hours_per_day)


def _mode(config: Config, layers: Sequence[Layer], modes: Sequence[Mode | None]) -> tuple[Mode, Origin]:
    """The mode that the last layer to say one says: as such, or by Spark's switch, which turns a table off and on."""
    mode: Mode = "observe"
    said_by, off = Origin(place=DEFAULT), None
    for layer, said in zip(layers, modes, strict=True):
        if said is not None:
            mode, said_by, off = said, Origin(place=layer.origin), None
        elif SWITCH in layer.settings:
            value = layer.settings[SWITCH]
            try:
                off = Origin(place=layer.origin, key=SWITCH, value=value) if switches_off(value) else None
            except ValueError as error:
                raise _fault(config, layer, SWITCH, str(error)) from error
    return ("off", off) if off else (mode, said_by)


def default_policy(config: Config) -> SizingPolicy:
    """The policy of a table that no rule matches. Raises ConfigError."""
    return _policy(config, list(config.default_layers))[0]


def for_all_tables(config: Config) -> ForAllTables:
    """What the defaults say for the whole service; what a table may have of its own is not among it. ConfigError."""
    return default_policy(config)


def check_rules(config: Config) -> None:
    """Raise ConfigError for the first rule that could not be used, whether or not a table matches it today."""
    _check_offered(config, config.file_name, default_policy(config))
    for number, rule in enumerate(config.tables):
        sample = re.sub(r"\[!?(.)[^]]*]|[*?]", lambda match: match.group(1) or "x", rule.match)
        # no rule asks for the format
        table = configure(config, TableRef(name=sample, format=FORMATS[0], location=f"/{sample}"))
        _check_offered(config, config.rule_origin(number), table.policy)


def _check_offered(config: Config, place: str, policy: SizingPolicy) -> None:
    """Raise ConfigError for a setting that no format of the sources offers; tables of one that does not say so."""
    # The format that can do most says best what there is.
    found = sorted(map(load_format, config.formats), key=lambda adapter: -len(adapter.capabilities))
    refused = [next(not_offered(policy, adapter), None) for adapter in found]
    if all(refused):
        raise ConfigError(f"{place}: {refused[0]}")


def knob_of(key: str) -> str | None:
    """The policy field that ``key`` sets under any spelling; None for a key that sets none by itself."""
    if key in ALIASES:
        return ALIASES[key].knob
    return next((knob for knob in (key, f"{key}_bytes", own_name(key)) if knob in KNOBS), None)


def _policy(config: Config, layers: list[Layer]) -> tuple[SizingPolicy, dict[str, Origin]]:
    """The policy of the layers together, and the origin of each of its fields."""
    chosen: dict[str, tuple[Origin, Layer]] = {}
    for layer in layers:
        for key, value in layer.settings.items():
            if key in _ONLY_IN_RULES:
                raise _fault(config, layer, key, f'{key} is set for tables: [[tables]] match = "…" {key} = …')
            if key == SWITCH and layer.origin == REQUEST:
                raise _fault(
                    config, layer, key, f"{key} is the mode of a table; it is set for tables, not by a request"
                )
            slot = knob_of(key) or key
            if slot in WHEN_TAKEN and layer.origin == REQUEST:
                raise _fault(config, layer, key, f"{key} holds for whoever takes plans; it is set for tables, not here")
            if slot in OBJECTIVES and layer.origin == REQUEST:
                raise _fault(config, layer, key, f"{key} is an objective of a table; it is set for tables, not here")
            if slot in FOR_ALL_TABLES and not layer.for_all_tables:
                raise _fault(config, layer, key, f"{key} has one value for all tables; set it in [defaults]")
            chosen.pop(slot, None)  # the later one also comes later where two spellings meet
            chosen[slot] = Origin(place=layer.origin, key=key, value=value), layer
    settings = {origin.key: origin.value for slot, (origin, _) in chosen.items() if slot != _DIALECT}
    dialect = chosen[_DIALECT][0] if _DIALECT in chosen else None
    try:
        policy = SizingPolicy.from_settings(settings, dialect=dialect.value if dialect else "spark")
    except PolicyError as error:
        if any(layer.origin == REQUEST for layer in layers):
            _policy(config, [layer for layer in layers if layer.origin != REQUEST])  # raises where the fault is there
            raise OverrideError(str(error)) from error
        raise _blame(config, chosen, error) from error
    origins = {}
    for knob in KNOBS:
        if knob in chosen:
            origins[knob] = chosen[knob][0]
        elif getattr(policy, knob) == DEFAULTS[knob]:
            origins[knob] = Origin(place=DEFAULT)
        else:  # set by keys that only mean something together, or by the dialect
            together = [origin for slot, (origin, _) in chosen.items() if slot not in KNOBS and slot in _TOGETHER]
            origins[knob] = (together or [dialect or Origin(place=DEFAULT)])[0]
    return policy, origins


def _blame(config: Config, chosen: Mapping[str, tuple[Origin, Layer]], error: PolicyError) -> Exception:
    """The error with the places of the settings its text names."""
    text = str(error)
    words = set(re.findall(r"[\w.]+", text))
    named = [
        (origin, layer)
        for slot, (origin, layer) in chosen.items()
        if origin.key in words
        or (slot in KNOBS and setting_name(slot) in words)
        or (not re.fullmatch(r"[\w.]+", origin.key) and origin.key in text)  # no word, so no setting
    ]
    if len(named) == 1:
        origin, layer = named[0]
        return _fault(config, layer, origin.key, text)
    places = "; ".join(f"{origin.key} from {origin.place}" for origin, _ in named)
    return ConfigError(f"{text}" + (f" ({places})" if places else ""))


def _fault(config: Config, layer: Layer, key: str, text: str) -> Exception:
    if layer.origin == REQUEST:
        return OverrideError(text)
    if config.file is None or not layer.where:
        return ConfigError(f"{layer.origin}: {text}")
    line = line_of(config.file.read_text(encoding="utf-8"), (*layer.where, key))
    return ConfigError(f"{config.file}:{line}: {text}" if line else f"{layer.origin}: {text}")
