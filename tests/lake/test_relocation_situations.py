# SPDX-License-Identifier: Apache-2.0
"""The sweep's decision in every small situation."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import product

import pytest
from relocation_states import (
    EARLY,
    INPUTS,
    LATE,
    NO_TIME,
    PUBLISHED,
    file,
    late_files,
    location_with,
    missing_files,
    partition_at,
    relocated,
    two_files,
)

from lake.relocation.decide import WRITER_GRACE, RelocationAction, decide
from lake.relocation.model import LocationState, PreviousLocation

_SUBSETS = [(), (0,), (1,), (0, 1)]


def situations() -> Iterator[
    tuple[PreviousLocation, LocationState, PreviousLocation, LocationState, LocationState, timedelta]
]:
    """Two previous locations and the current one, with any of their files missing and any files added, at any time."""
    times = [(), (EARLY,), (LATE,), (EARLY, LATE)]
    previous_locations = []
    for location in ("original", "middle"):
        inputs = two_files(location, INPUTS)
        for expected, there, late, cleaning in product(_SUBSETS, _SUBSETS, times, (False, True)):
            if set(there) <= set(expected) and (cleaning or len(expected) == 2):
                previous = PreviousLocation(
                    location=location, expected_files=tuple(inputs[one] for one in expected), is_cleaning_begun=cleaning
                )
                new = [file(f"{location}/new-{at}", at) for at in late]
                previous_locations.append((previous, location_with(*(inputs[one] for one in there), *new)))
    half = len(previous_locations) // 2
    published = two_files("current", PUBLISHED)
    for (original, at_original), (middle, at_middle) in product(previous_locations[:half], previous_locations[half:]):
        for there, late in product(_SUBSETS, times):
            current = location_with(*(published[one] for one in there), *(file(f"current/new-{at}", at) for at in late))
            yield original, at_original, middle, at_middle, current, WRITER_GRACE if len(late) == 1 else NO_TIME


@pytest.mark.slow
def test_in_no_situation_is_a_file_lost_copied_twice_or_restored_by_a_guess():
    count, actions = 0, set()
    for original, at_original, middle, at_middle, current, waited in situations():
        count += 1
        decision = decide(
            relocated(original, middle), partition_at(original=at_original, middle=at_middle, current=current), waited
        )
        actions.add(decision.action)
        pairs = ((original, at_original), (middle, at_middle))
        late = {one for pair in pairs for one in late_files(*pair)}
        published_gone = set(two_files("current", PUBLISHED)) - set(current.files)
        added = set(current.files) - set(two_files("current", PUBLISHED))
        assert not set(decision.files_to_copy) & set(decision.superseded_files)
        if decision.action in (RelocationAction.WAIT, RelocationAction.HALT):
            assert (decision.files_to_copy, decision.superseded_files) == ((), ()), "no action, so no mistake"
            assert (decision.action is RelocationAction.WAIT) <= (waited < WRITER_GRACE)
        elif decision.action is RelocationAction.NOTHING:
            assert late <= set(decision.superseded_files), "every late file is recorded"
            assert not late or (published_gone and added), "only a later overwrite supersedes rows"
        elif decision.action is RelocationAction.COPY_LATE_FILES:
            assert late == set(decision.files_to_copy) | set(decision.superseded_files)
            replaced = {one for pair in pairs if missing_files(*pair) for one in late_files(*pair)}
            assert replaced <= set(decision.superseded_files), (
                "only files that were added to complete locations are copied"
            )
            assert bool(decision.superseded_files) <= bool(published_gone)
        else:
            (over,) = (pair for pair in pairs if pair[0].location == decision.target_location)
            assert not over[0].is_cleaning_begun
            assert missing_files(*over) == set(over[0].expected_files) != set()
            assert not published_gone, "an overwrite reached the current location"
            assert late - late_files(*over) | added == set(decision.files_to_copy) | set(decision.superseded_files)
            began = min(one.modified_ms for one in late_files(*over))
            assert all(one.modified_ms < began for one in decision.superseded_files)
    others = {RelocationAction.REAPPLY, RelocationAction.REPLACE_COPIES, RelocationAction.RECORD_EMPTIED}
    assert actions == set(RelocationAction) - others
    assert count > 10_000
