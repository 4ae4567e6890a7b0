# SPDX-License-Identifier: Apache-2.0
"""Former names of settings: accepted for one release, each use with a notice of the present name.

Policy settings have their former names among the other aliases, in ``planner.policy.aliases``; the names of all other
settings are here.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from planner.policy.aliases import FORMER_NAMES

#: section → former key → present key
RENAMED_KEYS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "database": {"keep_finished": "plan_retention", "keep_audit": "audit_retention"},
        "daemon": {"merge_events": "merge_events_file"},
        "notify": {"keep_delivered": "delivered_retention", "keep_dead": "dead_retention"},
        "http": {"hosts": "allowed_hosts", "metrics_token": "metrics_need_token", "max_body": "max_body_size"},
        "oidc": {"session": "session_lifetime"},
    }
)
#: section and key → former value → present value
RENAMED_VALUES: Mapping[tuple[str, str], Mapping[str, str]] = MappingProxyType(
    {("work", "objective"): {"worth": "benefit"}}
)
#: a function that names the place of a setting in messages: ``lakefold.toml:7``
Place = Callable[[str], str]


class RenamedConflictError(ValueError):
    """One source gives a setting under its former and under its present name; the error is one line with the place."""


def former_keys(section: str, key: str) -> Iterator[str]:
    """Yield the former names of a key of ``section``."""
    return (old for old, new in RENAMED_KEYS.get(section, {}).items() if new == key)


def conflict_text(old: str, new: str) -> str:
    """Return the refusal of a setting that is given under both names."""
    return f"{old} is the former name of {new}; set one of them"


def with_present_names(section: str, given: Mapping[str, Any], place: Place, notices: list[str]) -> dict[str, Any]:
    """Return the settings of one section under their present names and values; uses are added to ``notices``.

    Raises RenamedConflictError if a setting is given under both names.
    """
    renamed = dict(given)
    for old, new in RENAMED_KEYS.get(section, {}).items():
        if old in renamed:
            if new in renamed:
                raise RenamedConflictError(f"{place(old)}: {conflict_text(f'{section}.{old}', f'{section}.{new}')}")
            renamed[new] = renamed.pop(old)
            notices.append(_notice(place(old), f"[{section}] {old}", new))
    for (where, key), words in RENAMED_VALUES.items():
        word = renamed.get(key)
        if where == section and isinstance(word, str) and word in words:
            renamed[key] = words[word]
            notices.append(_notice(place(key), f'[{section}] {key} = "{word}"', f'"{words[word]}"'))
    return renamed


def variables_with_present_names(
    variables: Mapping[str, str | None], prefix: str, notices: list[str]
) -> dict[str, str | None]:
    """Return ``variables`` under the present names of their settings, as ``with_present_names`` does.

    The names of variables are in lower case: ``lakefold_http__hosts``.
    """
    renamed = dict(variables)
    for section in {*RENAMED_KEYS, *(section for section, _ in RENAMED_VALUES)}:
        whole = f"{prefix}{section}".lower()
        keys = {name.removeprefix(f"{whole}__"): name for name in renamed if name.startswith(f"{whole}__")}
        given = {key: renamed.pop(name) for key, name in keys.items()}
        found = with_present_names(section, given, partial(_variable_place, f"{whole}__"), notices)
        renamed |= {f"{whole}__{key}": value for key, value in found.items()}
        if (text := renamed.get(whole)) is not None:
            try:
                document = json.loads(text)
            except ValueError:
                continue
            if isinstance(document, dict):
                found = with_present_names(section, document, partial(_json_place, whole), notices)
                renamed[whole] = json.dumps(found)
    return renamed


def policy_notices(keys: Iterable[str], place: Place) -> Iterator[str]:
    """Yield the notice of each former name of a policy setting among ``keys``."""
    return (_notice(place(key), key, FORMER_NAMES[key]) for key in keys if key in FORMER_NAMES)


def _variable_place(start: str, key: str) -> str:
    return f"environment variable {start.upper()}{key.upper()}"


def _json_place(variable: str, _key: str) -> str:
    return f"environment variable {variable.upper()}"


def _notice(place: str, old: str, new: str) -> str:
    return f"{place}: {old} was renamed to {new}; the next release will not accept the old name"
