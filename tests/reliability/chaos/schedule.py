# SPDX-License-Identifier: Apache-2.0
"""Which fault happens when: drawn from a seed before the run begins, so that the seed replays the schedule."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

#: faults with their weights. A pause costs seconds of work, a kill the start of a JVM: so there are more pauses.
FAULTS: Mapping[str, int] = {
    "kill": 4,
    "kill_jvm": 2,
    "kill_python": 2,
    "pause": 10,
    "pause_jvm": 4,
    "terminate": 1,
    "kill_writer": 2,
    "kill_writer_jvm": 1,
    "pause_writer": 5,
    "outage": 2,
    "expire_lock": 3,
}
#: what operators do, by mistake or on purpose
ACTS: Mapping[str, int] = {
    "hold": 2,
    "cancel": 3,
    "retry": 1,
    "request": 3,
    "change": 2,
    "clean": 1,
    "metadata": 2,
    "save": 2,
    "restore": 2,
}
_SHORT, _LONG = (0.2, 3.0), (8.0, 14.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One fault or one act of an operator, ``at`` seconds after the beginning.

    ``seconds`` is how long a pause or an outage lasts or a dead process stays away, shorter or longer than a lease;
    ``who`` picks one of the processes that are there at that moment, ``choice`` decides what else is open.
    """

    at: float
    kind: str
    seconds: float
    who: int
    choice: int


def schedule(seed: str, seconds: float, gap: float) -> list[Injection]:
    """Injections for a run of ``seconds``, on average one every ``gap`` seconds, at moments that nothing hints at."""
    random = Random(f"schedule/{seed}")
    weights = {**FAULTS, **ACTS}
    found: list[Injection] = []
    at = random.expovariate(1 / gap)
    while at < seconds:
        found.append(
            Injection(
                at=at,
                kind=random.choices(list(weights), list(weights.values()))[0],
                seconds=random.uniform(*(_LONG if random.random() < 0.3 else _SHORT)),
                who=random.randrange(1 << 16),
                choice=random.randrange(1 << 16),
            )
        )
        at += random.expovariate(1 / gap)
    return found
