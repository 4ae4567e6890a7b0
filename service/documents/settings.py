# SPDX-License-Identifier: Apache-2.0
"""The documents of settings: of the service and of one table, each with the place it came from, without secrets."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lake.redaction import shown, without_password

if TYPE_CHECKING:
    from service.config.loader import Config
    from service.config.tables import ConfiguredTable, Origin

#: settings whose numbers are bytes
_SIZES = (
    "small_file_limit",
    "target_file_max",
    "max_bytes_per_group",
    "max_bytes_per_plan",
    "budget_bytes_per_hour",
    "budget_bytes_per_day",
    "work.bytes_per_hour",
    "work.bytes_per_day",
    "missing_base",
    "compact_log_bytes",
    "http.max_body",
)


def setting(key: str, value: Any, origin: str) -> dict[str, Any]:
    """A setting in force without its secrets, and the place it came from; ``text`` is the value for people."""
    value = shown(key, value)
    return {"setting": key, "value": value, "text": _written(key, value), "origin": origin}


def _written(key: str, value: Any) -> str:
    """Bytes with a unit, durations as written, yes and no as TOML has them, lists with commas."""
    from lake.units import format_bytes, format_duration

    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and key in _SIZES:
        return format_bytes(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_written(name, item)}" for name, item in value.items())
    if isinstance(value, (tuple, list, frozenset, set)):
        return ", ".join(str(item) for item in value)
    return "" if value is None else str(value)


def service_settings(config: "Config") -> list[dict[str, Any]]:
    """Every setting of the service, passwords left out."""
    origins = config.origins

    def rows(section: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            setting(f"{section}.{key}", value, origins.get(f"{section}.{key}", "default"))
            for key, value in values.items()
        ]

    spark = [
        setting(
            key,
            shown(key, value),
            origins.get(f"spark.{key}") or origins.get(f"spark.{key.removeprefix('spark.')}", "default"),
        )
        for key, value in config.spark.items()
    ]
    sources = [
        setting("sources", source.model_dump(exclude_defaults=True), f"{config.file_name} [[sources]] #{number}")
        for number, source in enumerate(config.sources, 1)
    ]
    shown_url = without_password(config.database.url.get_secret_value())
    database = rows("database", {**config.database.model_dump(), "url": shown_url})
    return [
        *database,
        *spark,
        *sources,
        *rows("daemon", config.daemon.model_dump()),
        *rows("cost", config.cost.model_dump()),
        *rows("work", config.work.model_dump()),
        *rows("http", config.http.model_dump()),
        *rows("notify", config.notify.model_dump()),
        *rows("oidc", config.oidc.model_dump()),
        *rows("openlineage", config.openlineage.model_dump()),
        *rows("opentelemetry", config.opentelemetry.model_dump()),
    ]


def table_settings(table: "ConfiguredTable") -> list[dict[str, Any]]:
    """Every policy knob, mode and lock setting of one table."""
    from planner.policy import KNOBS, setting_name

    rows = [
        setting("mode", table.mode, _place(table.origins["mode"])),
        setting("owner", table.owner, table.origins["owner"].place),
        setting("concurrency", _concurrency(table), table.origins["concurrency"].place),
        setting("access", table.access, table.origins["access"].place),
        setting("sessions_refresh", table.ref.sessions_refresh, table.origins["sessions_refresh"].place),
        setting("on_conflict", table.ref.on_conflict or "as write_options say", table.origins["on_conflict"].place),
    ]
    rows += [setting(setting_name(knob), getattr(table.policy, knob), _place(table.origins[knob])) for knob in KNOBS]
    place = table.origins["write_options"].place
    rows += [setting(f"write_options.{key}", value, place) for key, value in sorted(table.ref.write_options.items())]
    return rows


def _place(origin: "Origin") -> str:
    return f"{origin.place} ({origin.key} = {origin.value!r})" if origin.key else origin.place


def _concurrency(table: "ConfiguredTable") -> str:
    from lake.formats import load_format
    from lake.ports import Capability
    from service.config.tables import DEFAULT

    if Capability.OPTIMISTIC_COMMITS in load_format(table.ref.format).capabilities:
        return f"not needed: {table.ref.format} tables keep writers apart"
    said = table.origins["concurrency"].place != DEFAULT
    return table.ref.concurrency.value if said else "not stated (docs/writers.md)"
