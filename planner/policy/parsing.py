# SPDX-License-Identifier: Apache-2.0
"""The parsers of settings' values. Every parser raises ValueError with a message of one line."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

from lake.units import is_unitless, parse_bytes, parse_duration

#: a plain value and a remark in parentheses, also Chinese ones, as in documentation: ``125829120 ( 120MB )``
_TRAILING_COMMENT = re.compile(r"\s*([0-9.]+\s*[a-zA-Z]*|true|false)\s*[(（][^()（）]*[)）]\s*")
_DECIMAL_UNIT = re.compile(r"(?<=[kmgtKMGT])[bB]\s*$")


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by their dotted keys; the key of a nested mapping is the prefix of the keys in it."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def strip_comment(value: Any) -> Any:
    """Return a value without the remark in parentheses that follows it."""
    remark = _TRAILING_COMMENT.fullmatch(value) if isinstance(value, str) else None
    return remark.group(1).strip() if remark else value


def parse_size(value: Any) -> int:
    """Parse the value of a size setting without a unit in its name."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is not a size; write a number with a unit, such as 300MiB")
    return parse_bytes(value)


def parse_byte_count(value: Any) -> int:
    """Parse the value of a size setting with bytes in its name, so a bare number means bytes."""
    return int(value) if is_unitless(value) and not isinstance(value, float) else parse_size(value)


def parse_integer(value: Any) -> int:
    """Parse a whole number: an integer, a float without a fraction, or a text of digits."""
    try:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a whole number") from None


def parse_number(value: Any) -> float:
    """Parse any number."""
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a number") from None


def parse_share(value: Any) -> float:
    """Parse a share: a number, or a percentage with a percent sign."""
    text = value.strip() if isinstance(value, str) else value
    try:
        return (
            round(parse_number(text[:-1]) / 100, 12)
            if isinstance(text, str) and text.endswith("%")
            else parse_number(text)
        )
    except ValueError:
        raise ValueError(f"{value!r} is not a share; write a number such as 0.05, or 5%") from None


def parse_timedelta(value: Any) -> timedelta:
    """Parse the value of a duration setting without a unit in its name."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, timedelta)):
        raise ValueError(f"{value!r} is not a duration; write a number with s, min, h, d or w, such as 15min or 7d")
    return parse_duration(value)


def parse_seconds(value: Any) -> timedelta:
    """Parse the value of a duration key with seconds in its name, so a bare number means seconds."""
    return timedelta(seconds=float(value)) if is_unitless(value) else parse_timedelta(value)


def parse_bool(value: Any) -> bool:
    """Parse ``true`` or ``false``, in any case."""
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise ValueError(f"{value!r} is neither true nor false")


def parse_optional_text(value: Any) -> str | None:
    """Return the value as text; None stays None."""
    return None if value is None else str(value)


def parse_lowercase(value: Any) -> str | None:
    """Return the value as text in lower case, without blanks at its ends; None stays None."""
    return None if value is None else str(value).strip().lower()


def parse_list(value: Any) -> tuple[str, ...]:
    """Parse a list, or a text with commas between its items. Empty items are left out."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple, set, frozenset)):
        raise ValueError(f"{value!r} is not a list; write names separated by commas")
    return tuple(stripped for part in parts if (stripped := str(part).strip()))


def parse_lowercase_list(value: Any) -> tuple[str, ...]:
    """Parse a list as ``parse_list`` does, into lower case."""
    return tuple(word.lower() for word in parse_list(value))


def enum_parser(enum_class: type[StrEnum]) -> Callable[[Any], StrEnum]:
    """Return the parser for the values of ``enum_class``, which may be written in any case."""

    def parse(value: Any) -> StrEnum:
        try:
            return enum_class(str(value).strip().lower())
        except ValueError:
            raise ValueError(f"{str(value)!r} is not one of {', '.join(enum_class)}") from None

    return parse


def parse_binary_size(value: Any) -> int:
    """Parse the value of a size key whose MB and GB are powers of 1024; bare numbers are bytes."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is not a size; write a number of bytes")
    return parse_byte_count(_DECIMAL_UNIT.sub("iB", value) if isinstance(value, str) else value)


def parse_mebibytes(value: Any) -> int:
    """Parse the value of a size key whose bare numbers are MiB, as in Flink."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is not a size; write a number of MiB")
    text = str(value).strip()
    return int(text) << 20 if text.isdigit() else parse_binary_size(text)
