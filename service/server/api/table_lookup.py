# SPDX-License-Identifier: Apache-2.0
"""Find a registered table by its name or its location.

If a given local path equals no table's location, the directory behind its links is compared with the tables'
directories.
"""

import os
import re

from lake.storage.locations import canonical_location, is_local, location_identity
from service import problems
from service.control.config.table_settings import ConfiguredTable
from service.control.store import NotFound
from service.problems import ProblemError
from service.server.api.context import Context
from service.text import did_you_mean, plural


def find_table(context: Context, name: str) -> ConfiguredTable:
    """Find the registered table called ``name``. Raises ProblemError with the nearest name if there is none."""
    try:
        return context.configured_table(context.store.table_state(name))
    except NotFound:
        known = [state.name for state in context.store.table_states()]
    hint = did_you_mean(name, known) or f"; {plural(len(known), 'table')} known"
    raise ProblemError(problems.NOT_FOUND, f"no table {name!r}{hint}", table=name)


def find_table_at(context: Context, location: str) -> ConfiguredTable:
    """Find the registered table at ``location``, in any spelling of its URI. Raises ProblemError if there is none."""
    wanted, states = normalize_location(location), context.store.table_states()
    found = next((state for state in states if normalize_location(state.location) == wanted), None)
    if found is None and is_local(wanted) and os.path.isdir(wanted):
        identity = location_identity(wanted)
        found = next((s for s in states if is_local(s.location) and location_identity(s.location) == identity), None)
    if found is None:
        raise ProblemError(problems.NOT_FOUND, f"no table is known at {location!r}", location=location)
    return context.configured_table(found)


def find_table_by_name_or_location(context: Context, name_or_location: str) -> ConfiguredTable:
    """Find a registered table by its name, path or URI. Raises ProblemError if there is none."""
    return (
        find_table_at(context, name_or_location) if "/" in name_or_location else find_table(context, name_or_location)
    )


def normalize_location(location: str) -> str:
    """Return the canonical spelling of ``location``, equal for all spellings of it."""
    return re.sub(r"(?<!:)/{2,}", "/", canonical_location(location))
