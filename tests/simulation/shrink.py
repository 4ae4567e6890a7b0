# SPDX-License-Identifier: Apache-2.0
"""Runs seeds, and reduces a failing script to the items that it needs to fail."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

from simulation.script import Item, Script, draw
from simulation.world import World, simulated

_LAST_EVENTS = 40
#: a run leaves only cyclic garbage; this many runs are kept before a collection
_RUNS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Failure:
    """A failing seed: the violated invariant, the fewest items that reproduce it, and the last events of the run."""

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
    """Return the first of ``seeds`` that violates an invariant; None if there is none."""
    with simulated(), defect or nullcontext(), _collecting_between_runs() as collect:
        for seed in seeds:
            if World(draw(seed)).run() is not None:
                return seed
            if seed % _RUNS_AT_ONCE == 0:
                collect()
    return None


@contextmanager
def _collecting_between_runs() -> Iterator[Callable[[], object]]:
    """Inside the block, collect garbage only when the yielded function is called, and only objects created since."""
    gc.freeze()
    gc.disable()
    try:
        yield gc.collect
    finally:
        gc.enable()
        gc.unfreeze()


def explain(seed: int, defect: AbstractContextManager[object] | None = None, name: str = "") -> Failure | None:
    """Run ``seed`` and shrink it; None if all invariants held."""
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
    """Return the script without all parts of its items that it does not need to fail in the same way."""
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
