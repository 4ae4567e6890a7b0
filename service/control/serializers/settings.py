# SPDX-License-Identifier: Apache-2.0
"""The documents of settings: of the service and of one table, each with its origin, without secrets."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from lake.redaction import redact_database_url, redact_setting

if TYPE_CHECKING:
    from service.control.config.loader import Config
    from service.control.config.table_settings import ConfiguredTable, Origin

#: settings whose values are numbers of bytes
_BYTE_SETTINGS = (
    "small_file_limit",
    "target_file_max",
    "split_file_limit",
    "max_bytes_per_group",
    "max_bytes_per_plan",
    "budget_bytes_per_hour",
    "budget_bytes_per_day",
    "work.bytes_per_hour",
    "work.bytes_per_day",
    "log_only_slice_size",
    "compact_log_bytes",
    "min_row_group",
    "http.max_body_size",
)


def setting_document(key: str, value: Any, origin: str) -> dict[str, Any]:
    """Return a setting in force without secrets, and its origin; ``text`` is the value for people."""
    value = redact_setting(key, value)
    return {"setting": key, "value": value, "text": _format_value(key, value), "origin": origin}


@cache
def _words_for_zero() -> dict[str, str]:
    """Return the settings for which 0 does not mean an amount, each with the meaning of 0 in its description."""
    from planner.policy.fields import PolicySettings
    from planner.policy.policy import setting_name
    from service.control.config.loader import SECTIONS

    meanings = {setting_name(one.name): one.metadata.get("meaning", "") for one in fields(PolicySettings)}
    for section, model in SECTIONS.items():
        meanings |= {f"{section}.{key}": one.description or "" for key, one in model.model_fields.items()}
    zeros = {key: meaning.partition("; 0: ")[2] for key, meaning in meanings.items()}
    return {key: "for ever" if zero == "for ever" else "off" for key, zero in zeros.items() if zero}


def _format_value(key: str, value: Any) -> str:
    """Return bytes with a unit, durations as written, booleans as in TOML, lists with commas, and 0 as off."""
    from lake.units import format_bytes, format_duration

    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float, timedelta)) and not value and key in _words_for_zero():
        return _words_for_zero()[key]
    if isinstance(value, timedelta):
        return format_duration(value) if value else "0 s"
    if isinstance(value, int) and key in _BYTE_SETTINGS:
        return format_bytes(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_format_value(name, item)}" for name, item in value.items())
    if isinstance(value, (tuple, list, frozenset, set)):
        return ", ".join(str(item) for item in value)
    return "" if value is None else str(value)


def service_settings(config: "Config") -> list[dict[str, Any]]:
    """Return every setting of the service, without passwords."""
    origins = config.origins

    def rows(section: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            setting_document(f"{section}.{key}", value, origins.get(f"{section}.{key}", "default"))
            for key, value in values.items()
        ]

    spark = [
        setting_document(
            key,
            redact_setting(key, value),
            origins.get(f"spark.{key}") or origins.get(f"spark.{key.removeprefix('spark.')}", "default"),
        )
        for key, value in config.spark.items()
    ]
    sources = [
        setting_document(
            "sources", source.model_dump(exclude_defaults=True), f"{config.file_name} [[sources]] #{number}"
        )
        for number, source in enumerate(config.sources, 1)
    ]
    shown_url = redact_database_url(config.database.url.get_secret_value())
    database = rows("database", {**config.database.model_dump(), "url": shown_url})
    return [
        *database,
        *spark,
        *sources,
        *rows("daemon", config.daemon.model_dump()),
        *rows("cost", config.cost.model_dump()),
        *rows("work", config.work.model_dump()),
        *rows("http", config.http.model_dump()),
        *rows("reads", config.reads.model_dump()),
        *rows("notify", config.notify.model_dump()),
        *rows("oidc", config.oidc.model_dump()),
        *rows("openlineage", config.openlineage.model_dump()),
        *rows("opentelemetry", config.opentelemetry.model_dump()),
    ]


def table_settings(table: "ConfiguredTable") -> list[dict[str, Any]]:
    """Return every policy setting, mode and lock setting of one table."""
    from planner.policy.policy import FIELD_PARSERS, setting_name

    rows = [
        setting_document("mode", table.mode, _format_origin(table.origins["mode"])),
        setting_document("owner", table.owner, table.origins["owner"].source),
        setting_document("tags", ", ".join(table.tags), table.origins["tags"].source),
        setting_document("resource_group", table.resource_group or "default", table.origins["resource_group"].source),
        setting_document("concurrency", _format_concurrency(table), table.origins["concurrency"].source),
        setting_document("access", table.access, table.origins["access"].source),
        setting_document("sessions_refresh", table.ref.sessions_refresh, table.origins["sessions_refresh"].source),
        setting_document(
            "on_conflict", table.ref.on_conflict or "as write_options say", table.origins["on_conflict"].source
        ),
    ]
    rows += [
        setting_document(setting_name(knob), getattr(table.policy, knob), _format_origin(table.origins[knob]))
        for knob in FIELD_PARSERS
    ]
    source = table.origins["write_options"].source
    rows += [
        setting_document(f"write_options.{key}", value, source)
        for key, value in sorted(table.ref.write_options.items())
    ]
    return rows


def _format_origin(origin: "Origin") -> str:
    return f"{origin.source} ({origin.key} = {origin.value!r})" if origin.key else origin.source


def _format_concurrency(table: "ConfiguredTable") -> str:
    from lake.ports import Capability
    from service.control.config.table_settings import DEFAULT_ORIGIN

    if Capability.OPTIMISTIC_COMMITS in table.adapter.capabilities:
        return f"not needed: {table.ref.format} tables keep writers apart"
    is_set = table.origins["concurrency"].source != DEFAULT_ORIGIN
    return table.ref.concurrency.value if is_set else "not stated (docs/writers.md)"
