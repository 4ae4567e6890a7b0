# SPDX-License-Identifier: Apache-2.0
"""The table a caller means: by the name it is registered under, or by its location.

Of a path only this is looked at: which directory it leads to, where no table's location is spelled like it.
"""

import os
import re

from lake.storage.locations import canonical_location, is_local, location_identity
from service import problems
from service.control.config.tables import ConfiguredTable
from service.control.store import NotFound
from service.problems import ProblemError
from service.server.api.context import Context
from service.text import did_you_mean, plural


def find_table(context: Context, name: str) -> ConfiguredTable:
    """The registered table called ``word``. Raises CommandError with the nearest name."""
    try:
        return context.configured_table(context.store.table_state(name))
    except NotFound:
        known = [state.name for state in context.store.table_states()]
    hint = did_you_mean(name, known) or f"; {plural(len(known), 'table')} known"
    raise ProblemError(problems.NOT_FOUND, f"no table {name!r}{hint}", table=name)


def find_table_at(context: Context, location: str) -> ConfiguredTable:
    """The registered table at ``location``, however its URI is spelled. Raises CommandError."""
    wanted, states = normalize_location(location), context.store.table_states()
    found = next((state for state in states if normalize_location(state.location) == wanted), None)
    if found is None and is_local(wanted) and os.path.isdir(wanted):
        place = location_identity(wanted)
        found = next((s for s in states if is_local(s.location) and location_identity(s.location) == place), None)
    if found is None:
        raise ProblemError(problems.NOT_FOUND, f"no table is known at {location!r}", location=location)
    return context.configured_table(found)


def find_table_by_name_or_location(context: Context, name_or_location: str) -> ConfiguredTable:
    """The registered table called ``word`` or at the path or URI ``word``. Raises CommandError."""
    return (
        find_table_at(context, name_or_location) if "/" in name_or_location else find_table(context, name_or_location)
    )


def normalize_location(location: str) -> str:
    """``location`` in the one spelling that all spellings of the same place share."""
    return re.sub(r"(?<!:)/{2,}", "/", canonical_location(location))
