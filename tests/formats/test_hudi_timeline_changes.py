# SPDX-License-Identifier: Apache-2.0
"""The last look at a Hudi table whose timeline moves between its steps; tables made by hand, no JVM.

Owners and writers do what they do before a listing, or while lakefold follows the properties, checks, gets ready, asks
whose the plan is, or confirms the lock. Where the last look lets lakefold act, the table as it is then must allow that.
"""

import io
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fastavro
import pytest
from hudi_by_hand import T1, T2, T3, ByHand, without_java
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from test_hudi_pending_actions import ROLLBACK

from lake.errors import LakefoldError, LeaseLost, Transient
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.plans import preconditions as module
from lake.formats.hudi.plans.preconditions import OwnInstant, check_preconditions
from lake.formats.hudi.timeline.clocks import format_instant_time
from lake.formats.hudi.timeline.timeline import Timeline

pytestmark = pytest.mark.slow

OURS, DIED = T3, T2
STEPS = ("listing", "follow", "check", "ready", "fence", "confirm")
#: what is pending of others and excludes a commit of lakefold's, each with whether it excludes a withdrawal
EXCLUDING = {
    "restore": True,
    "savepoint": False,
    "rollback of a commit": True,
    "rollback of the plan": False,
    "rollback without a plan": False,
}
BESIDE = ("clean", "write", "rollback of what died")
METADATA = ".hoodie/metadata/.hoodie"


@dataclass
class Moving:
    """A table, what others do to it at which call of the last look, and what they have pending now."""

    table: ByHand
    #: (step, its n-th call) → what happens right before it
    moves: dict[tuple[str, int], list[str]]
    withdraws: bool
    pending: dict[str, Path] = field(default_factory=dict)
    is_ahead: bool = False
    is_lost: bool = False
    is_replanned: bool = False
    calls: dict[str, int] = field(default_factory=dict)
    #: what the timeline and the metadata table's were when the caller was asked last
    checked: object = None
    moved: int = 0
    ever_excluded: bool = False
    _number: int = 0

    def step(self, name: str) -> None:
        """One step of the last look: what others do right before it."""
        self.calls[name] = self.calls.get(name, 0) + 1
        for move in self.moves.pop((name, self.calls[name]), ()):
            # Only who has got the lock moves the table once all listings are over.
            self.is_lost |= name == "confirm"
            self.moved += 1
            self._do(move)
        self.ever_excluded |= self.is_excluded

    @property
    def is_excluded(self) -> bool:
        """Whether lakefold must not act on the table as it is now."""
        excluding = {what for what, withdrawal_too in EXCLUDING.items() if withdrawal_too or not self.withdraws}
        return bool(excluding & {*self.pending}) or self.is_ahead or self.is_lost or self.is_replanned

    def now(self) -> object:
        """What is on the timelines, read anew."""
        metadata = Timeline(TableStorage(str(self.table.base)).subdirectory(".hoodie/metadata"))
        return Timeline(TableStorage(str(self.table.base))).instants, metadata.instants

    def _do(self, move: str) -> None:
        home, self._number = self.table.base / ".hoodie", self._number + 1
        time = f"20260201{self._number:06d}000"
        if move.startswith("end of "):
            for path in [self.pending.pop(what) for what in (move.removeprefix("end of "),) if what in self.pending]:
                path.unlink()
        elif move == "commit of a clock ahead":
            self.is_ahead = True
            self.table.complete(format_instant_time(datetime.now(UTC) + timedelta(hours=1)), "commit")
        elif move == "metadata commit of a clock ahead":
            self.is_ahead = True
            (
                self.table.base
                / METADATA
                / f"{format_instant_time(datetime.now(UTC) + timedelta(hours=1))}.deltacommit"
            ).touch()
        elif move == "metadata commit":
            (self.table.base / METADATA / f"{time}.deltacommit").touch()
        elif move == "commit":
            self.is_replanned = True
            self.table.complete(time, "commit")
        elif move not in self.pending:
            kind = "deltacommit" if move == "write" else move.partition(" ")[0]
            path = self.pending[move] = home / f"{time}.{kind}.requested"
            path.write_bytes(rollback_of(move))


def rollback_of(move: str) -> bytes:
    """The plan of a rollback, which is empty until it says what it takes back."""
    targets = {"rollback of a commit": T1, "rollback of the plan": OURS, "rollback of what died": DIED}
    if move not in targets:
        return b""
    buffer = io.BytesIO()
    record = {"instantToRollback": {"commitTime": targets[move], "action": "commit"}}
    fastavro.writer(buffer, fastavro.parse_schema(ROLLBACK), [record])
    return buffer.getvalue()


def client_of(moving: Moving) -> Any:
    """The client double of the tests by hand, each of whose calls is a step."""
    client = without_java(moving.table)
    listed = client.read_timeline

    def stepping(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            moving.step(name)
            return call(*args, **kwargs)

        return step

    def confirm(doing: str) -> None:
        if moving.is_lost:
            raise Transient(f"the lock was lost while {doing}")

    client.read_timeline = stepping("listing", listed)
    client.follow_table_changes = stepping("follow", client.follow_table_changes)
    client.assert_lock_held = stepping("confirm", confirm)
    return client


def look(moving: Moving) -> bool:
    """Take a last look; whether lakefold may act. What must hold then is asserted."""
    seen = Timeline(TableStorage(str(moving.table.base)))

    def check(timeline: Timeline) -> None:
        moving.step("check")
        moving.checked = (timeline.instants, moving.now()[1])  # type: ignore[index]
        if len(timeline.completed) > len(seen.completed):
            raise Transient("something completed meanwhile")

    try:
        found = check_preconditions(
            client_of(moving),
            "committing",
            own=None if moving.withdraws else OwnInstant(time=OURS, is_pending=True),
            check=check,
            prepare=lambda: moving.step("ready"),
            fence=lambda: moving.step("fence"),
            is_withdrawal=moving.withdraws,
        )
    except LakefoldError:
        return False
    assert not moving.is_excluded, f"lakefold may act although {sorted(moving.pending)} is pending"
    assert (found.instants, moving.now()[1]) == moving.now(), "the timeline is another one by now"  # type: ignore[index]
    assert moving.checked == moving.now(), "the caller was asked about another timeline"
    return True


MOVES = st.sampled_from(
    (
        *EXCLUDING,
        *BESIDE,
        *(f"end of {what}" for what in (*EXCLUDING, *BESIDE)),
        "commit",
        "commit of a clock ahead",
        "metadata commit",
        "metadata commit of a clock ahead",
    )
)
WHEN = st.tuples(st.sampled_from(STEPS), st.integers(1, 6))
SCRIPTS = st.lists(st.tuples(WHEN, MOVES), max_size=8)
Script = Sequence[tuple[tuple[str, int], str]]


def run(script: Script, *, withdraws: bool) -> None:
    """Play one script on a table of its own."""
    with tempfile.TemporaryDirectory() as directory:
        table = ByHand(Path(directory) / "t")
        table.complete(T1, "commit")
        (table.base / METADATA).mkdir(parents=True)
        (table.base / METADATA / "hoodie.properties").write_text(
            (table.base / ".hoodie/hoodie.properties").read_text().replace("name=t", "name=t_metadata")
        )
        moves: dict[tuple[str, int], list[str]] = {}
        for when, move in script:
            moves.setdefault(when, []).append(move)
        moving = Moving(table, moves, withdraws)
        may_act = look(moving)
        assert may_act or moving.ever_excluded or moving.moved >= 3, "nothing was in the way"


@example(script=[(("fence", 1), "restore")], withdraws=False)
@example(script=[(("fence", 1), "rollback of a commit")], withdraws=True)
@example(script=[(("listing", 1), "restore"), (("follow", 1), "end of restore")], withdraws=False)
@example(
    script=[(("listing", 1), "rollback of a commit"), (("follow", 1), "end of rollback of a commit")], withdraws=False
)
@example(script=[(("fence", n), "write") for n in range(1, 6)], withdraws=False)
@example(script=[(("ready", 1), "metadata commit of a clock ahead")], withdraws=False)
@example(script=[(("confirm", 1), "restore")], withdraws=False)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(script=SCRIPTS, withdraws=st.booleans())
def test_lakefold_never_acts_on_a_table_that_excludes_it_at_that_moment(script: Script, withdraws: bool) -> None:
    run(script, withdraws=withdraws)


def _remains(look: Any) -> object:
    return ()


def _without_metadata(look: Any) -> object:
    return tuple(sorted(look.timeline.properties.items())), look.timeline.instants


@pytest.mark.parametrize(
    "planted",
    [
        lambda: patch.object(module._ObservedTimelines, "fingerprint", property(_remains)),
        lambda: patch.object(module._ObservedTimelines, "fingerprint", property(_without_metadata)),
        lambda: patch.object(module, "_refuse_excluding_actions", lambda *_, **__: None),
        lambda: patch.object(module, "_refuse_clock", lambda *_, **__: None),
    ],
    ids=["no second look after the fence", "no second look at the metadata table", "no look at others", "no clock"],
)
def test_a_planted_defect_of_the_final_check_is_found(planted: Callable[[], Any]) -> None:
    @settings(
        max_examples=600,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(script=SCRIPTS, withdraws=st.booleans())
    def hold(script: Script, withdraws: bool) -> None:
        run(script, withdraws=withdraws)

    with planted(), pytest.raises(AssertionError):
        hold()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_the_lease_is_checked_after_each_change(tmp_path: Path, nth: int) -> None:
    """A successor that takes the plan over while the timeline moves is seen: the fence is asked in each round."""
    table = ByHand(tmp_path / "t")
    table.complete(T1, "commit")
    asked = 0

    def fence() -> None:
        nonlocal asked
        asked += 1
        if asked > nth:
            raise LeaseLost("another executor has the plan")
        (table.base / f".hoodie/2026020100000{asked}000.deltacommit.requested").touch()

    with pytest.raises(LeaseLost):
        check_preconditions(without_java(table), "committing", fence=fence)
    assert asked == nth + 1
