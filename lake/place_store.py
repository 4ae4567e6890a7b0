# SPDX-License-Identifier: Apache-2.0
"""The part of the database that the sweep of former places uses, as a protocol beside ``lake.plan_store``."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Protocol, Self

from lake.model import TableRef
from lake.moved import Carry, Former, Left, Moved, Past, PastMove, Regrown
from lake.plan import Keeper, Move, PlacedFile
from lake.plan_store import PlanStore


class PlaceStore(PlanStore, Protocol):
    """What is known of partitions that were moved. Times are the database's."""

    def within_hold(self, table: TableRef, partition: str, keeper: Keeper) -> Self:
        """The same store for a round of the sweep, whose writes below hold the partition on, in one transaction.

        They raise LeaseLost where ``keeper`` has not held it without a break: another round may have written by then
        what this one would undo.
        """

    def open_moves(self, table: TableRef) -> Collection[str]:
        """The moved partitions in which a move or a carry was begun and not ended, or that are waited for."""

    def moved_after(self, table: TableRef, partition: str, count: int) -> Sequence[str]:
        """The names of the next moved partitions after one, sorted; fewer than ``count`` at the end."""

    def left_lately(self, table: TableRef, within: timedelta, most: int) -> Sequence[Left]:
        """The places that moves begun ``within`` that time have left or leave: the ``most`` last ones, newest first."""

    def moved_lately(self, table: TableRef, left: Sequence[Left]) -> Sequence[Moved]:
        """The partitions of these moves, as far as they tell: what was left before is not in ``former``.

        Nor is what was carried and is done with. Of a partition that was moved by none of them there is nothing.
        """

    def again(self, table: TableRef, partition: str, places: Collection[str]) -> int:
        """Have places be looked at that writers have made again after they were forgotten; how many were not known.

        Of a partition that was never moved none are.
        """

    def pasts(self, table: TableRef, age: timedelta, after: str, most: int) -> tuple[Sequence[Past], str]:
        """The moves of the next partitions after one that were moved often, and the name to go on after, or ''.

        A move is over where it was made longer than ``age`` ago and all that it, and those before it, replaced was
        deleted before then.
        ``most`` partitions are looked at. One in which a move was begun and not ended is left out, as is one of which
        another table's moves are known.
        """

    def tokens_left(self, table: TableRef, without: Sequence[PastMove]) -> Collection[str]:
        """The tokens of these moves that other moves of the table have, too: those of other partitions."""

    def forget_places(self, table: TableRef, numbers: Collection[int]) -> int:
        """Forget the moves of these numbers; how many there were. The last move of a partition stays."""

    def begin_carries(
        self,
        table: TableRef,
        partition: str,
        targets: Sequence[tuple[PlacedFile, str]],
        came_ms: Mapping[PlacedFile, int],
    ) -> None:
        """Record what is about to be copied, each source with its target; a source that has that target stays done.

        ``came_ms`` is when sources came; what was recorded of one first stays.
        """

    def end_carries(self, table: TableRef, carries: Sequence[tuple[Carry, Former | None]]) -> None:
        """Record that these are done; each source waits for its deletion where it is of a former place that is given.

        A source without one is gone.
        """

    def begin_move(self, table: TableRef, move: Move, plan_id: str, left: Sequence[PlacedFile]) -> None:
        """Record a move, and the files that it leaves, before its catalog is called."""

    def end_move(self, table: TableRef, move: Move) -> None:
        """Record that a move was made; what it left waits for its deletion under its plan."""

    def forget_moves(self, table: TableRef, moves: Sequence[Move]) -> None:
        """Forget moves that were begun and not made."""

    def replaced(self, table: TableRef, last: Move, files: Sequence[tuple[Regrown, Former, PlacedFile]]) -> None:
        """Record files that grew under their names: where each was, as what it waits for its deletion, and its copy."""

    def set_aside(self, table: TableRef, partition: str, former: Former, files: Sequence[PlacedFile]) -> None:
        """Have files of a former place wait for their deletion: a later overwrite has removed their rows."""

    def gone(self, table: TableRef, former: Former, files: Sequence[PlacedFile]) -> None:
        """End the wait of files of a former place that a writer has removed: nobody expects them there any more."""

    def moved_aside(self, table: TableRef, partition: str, former: Former, paths: Mapping[PlacedFile, str]) -> None:
        """Record that files which wait for their deletion are at other paths now, and tell of it."""

    def name_stalled(self, table: TableRef, files: Collection[PlacedFile], places: Collection[str]) -> None:
        """Quarantine files that their writers have not finished, and no other file of these places for that reason."""

    def unsettled(self, table: TableRef, moved: Moved, is_so: bool) -> timedelta:
        """Note whether what is there is to be waited for; for how long that has been so."""
