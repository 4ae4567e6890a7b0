# SPDX-License-Identifier: Apache-2.0
"""How the value of a setting is read, by what it means. Every reader raises ValueError in one line."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

from lake.units import is_bare, parse_bytes, parse_duration

#: a plain value with a remark behind it, as documents print them: ``125829120 ( 120MB )``, in Chinese ones too
_REMARK = re.compile(r"\s*([0-9.]+\s*[a-zA-Z]*|true|false)\s*[(（][^()（）]*[)）]\s*")
_DECIMAL_UNIT = re.compile(r"(?<=[kmgtKMGT])[bB]\s*$")


def flattened(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their dotted keys; a nested mapping is read as what its keys begin with."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def without_remark(value: Any) -> Any:
    """A value without what stands in parentheses behind it."""
    remark = _REMARK.fullmatch(value) if isinstance(value, str) else None
    return remark.group(1).strip() if remark else value


def read_size(value: Any) -> int:
    """A size under a name that says no unit."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is not a size; write a number with a unit, such as 300MiB")
    return parse_bytes(value)


def read_bytes(value: Any) -> int:
    """A size under a name that says bytes, so that a bare number is one of them."""
    return int(value) if is_bare(value) and not isinstance(value, float) else read_size(value)


def read_count(value: Any) -> int:
    try:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a whole number") from None


def read_ratio(value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a number") from None


def read_share(value: Any) -> float:
    """A share: a number, or one with a percent sign."""
    text = value.strip() if isinstance(value, str) else value
    try:
        return (
            round(read_ratio(text[:-1]) / 100, 12) if isinstance(text, str) and text.endswith("%") else read_ratio(text)
        )
    except ValueError:
        raise ValueError(f"{value!r} is not a share; write a number such as 0.05, or 5%") from None


def read_span(value: Any) -> timedelta:
    """A duration under a name that says no unit."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, timedelta)):
        raise ValueError(f"{value!r} is not a duration; write a number with s, min, h, d or w, such as 15min or 7d")
    return parse_duration(value)


def seconds(value: Any) -> timedelta:
    """A duration under a key that says seconds, so that a bare number is one of them."""
    return timedelta(seconds=float(value)) if is_bare(value) else read_span(value)


def read_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise ValueError(f"{value!r} is neither true nor false")


def read_text(value: Any) -> str | None:
    return None if value is None else str(value)


def read_word(value: Any) -> str | None:
    return None if value is None else str(value).strip().lower()


def read_words(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple, set, frozenset)):
        raise ValueError(f"{value!r} is not a list; write names separated by commas")
    return tuple(stripped for part in parts if (stripped := str(part).strip()))


def read_lower_words(value: Any) -> tuple[str, ...]:
    return tuple(word.lower() for word in read_words(value))


def read_one_of(kinds: type[StrEnum]) -> Callable[[Any], StrEnum]:
    def parse(value: Any) -> StrEnum:
        try:
            return kinds(str(value).strip().lower())
        except ValueError:
            raise ValueError(f"{str(value)!r} is not one of {', '.join(kinds)}") from None

    return parse


def binary_bytes(value: Any) -> int:
    """A size under a key whose MB and GB are powers of 1024; bare numbers are bytes."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is not a size; write a number of bytes")
    return read_bytes(_DECIMAL_UNIT.sub("iB", value) if isinstance(value, str) else value)


def mebibytes(value: Any) -> int:
    """A size under a key whose bare numbers are MiB, as Flink's."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is not a size; write a number of MiB")
    text = str(value).strip()
    return int(text) << 20 if text.isdigit() else binary_bytes(text)
