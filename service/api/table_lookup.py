# SPDX-License-Identifier: Apache-2.0
"""The table a caller means: by the name it is registered under, or by its location.

Of a path only this is looked at: which directory it leads to, where no table's location is spelled like it.
"""

import os
import re

from lake.locations import canonical_location, is_local, place_of
from service import problems
from service.api.context import Context
from service.config.tables import ConfiguredTable
from service.problems import CommandError
from service.store import NotFound
from service.text import nearest, plural


def named(here: Context, word: str) -> ConfiguredTable:
    """The registered table called ``word``. Raises CommandError with the nearest name."""
    try:
        return here.configured(here.store.table_state(word))
    except NotFound:
        known = [state.name for state in here.store.tables()]
    hint = nearest(word, known) or f"; {plural(len(known), 'table')} known"
    raise CommandError(problems.NOT_FOUND, f"no table {word!r}{hint}", table=word)


def located(here: Context, location: str) -> ConfiguredTable:
    """The registered table at ``location``, however its URI is spelled. Raises CommandError."""
    wanted, states = same_location(location), here.store.tables()
    found = next((state for state in states if same_location(state.location) == wanted), None)
    if found is None and is_local(wanted) and os.path.isdir(wanted):
        place = place_of(wanted)
        found = next((s for s in states if is_local(s.location) and place_of(s.location) == place), None)
    if found is None:
        raise CommandError(problems.NOT_FOUND, f"no table is known at {location!r}", location=location)
    return here.configured(found)


def named_or_located(here: Context, word: str) -> ConfiguredTable:
    """The registered table called ``word`` or at the path or URI ``word``. Raises CommandError."""
    return located(here, word) if "/" in word else named(here, word)


def same_location(location: str) -> str:
    """``location`` in the one spelling that all spellings of the same place share."""
    return re.sub(r"(?<!:)/{2,}", "/", canonical_location(location))
