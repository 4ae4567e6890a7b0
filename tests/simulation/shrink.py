# SPDX-License-Identifier: Apache-2.0
"""Runs of seeds, and what is left of a failing one when everything it does not need is dropped."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

from simulation.script import Item, Script, draw
from simulation.world import World, simulated

_LAST_EVENTS = 40
#: a run leaves cycles only; so many are kept before they are looked for
_RUNS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed that did not hold: which invariant, the fewest items it takes, and the last events of that run."""

    seed: int
    what: str
    text: str
    items: tuple[Item, ...]
    trace: tuple[str, ...]
    command: str

    def __str__(self) -> str:
        return "\n".join(
            [
                f"seed {self.seed}: {self.what}: {self.text}",
                f"replay: {self.command}",
                f"{len(self.items)} items suffice:",
                *(f"  {item}" for item in self.items),
                "the last events:",
                *(f"  {line}" for line in self.trace[-_LAST_EVENTS:]),
            ]
        )


def first_failure(seeds: Iterable[int], defect: AbstractContextManager[object] | None = None) -> int | None:
    """The first of ``seeds`` in which something did not hold; None where all did."""
    with simulated(), defect or nullcontext(), _collecting_between_runs() as collect:
        for seed in seeds:
            if World(draw(seed)).run() is not None:
                return seed
            if seed % _RUNS_AT_ONCE == 0:
                collect()
    return None


@contextmanager
def _collecting_between_runs() -> Iterator[Callable[[], object]]:
    """No garbage is looked for inside this block but when the function is called, and not in what was there before."""
    gc.freeze()
    gc.disable()
    try:
        yield gc.collect
    finally:
        gc.enable()
        gc.unfreeze()


def explain(seed: int, defect: AbstractContextManager[object] | None = None, name: str = "") -> Failure | None:
    """Run ``seed`` and shrink it; None where everything held."""
    with simulated(), defect or nullcontext():
        script = draw(seed)
        found = World(script).run()
        if found is None:
            return None
        script = _shrunk(script, found[0])
        world = World(script, traced=True)
        found = world.run()
        assert found is not None
        command = f"PYTHONPATH=tests .venv/bin/python -m simulation --seed {seed}" + (f" --defect {name}" * bool(name))
        return Failure(seed, *found, script.items, tuple(world.trace or ()), command)


def _shrunk(script: Script, what: str) -> Script:
    """The script with ever smaller parts of its items dropped for as long as it still fails in the same way."""
    size = max(1, len(script.items) // 2)
    while True:
        dropped = False
        place = 0
        while place < len(script.items):
            fewer = replace(script, items=script.items[:place] + script.items[place + size :])
            found = World(fewer).run()
            if found is not None and found[0] == what:
                script, dropped = fewer, True
            else:
                place += size
        if size == 1 and not dropped:
            return script
        size = max(1, size // 2)
