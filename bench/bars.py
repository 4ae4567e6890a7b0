# SPDX-License-Identifier: Apache-2.0
"""The bars of the benchmark: each compares figures of one run, and is met, missed or not measured."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.ways import LABELS

SetResults = Mapping[str, Mapping[str, Any]]
"""The measurements of each set: ``results`` has the figures of each round of each way."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bar, the figure that was measured, and whether it is good enough; None if it was not measured."""

    bar: str
    measured: str
    is_met: bool | None

    def __str__(self) -> str:
        return f"{ {True: 'met', False: 'MISSED', None: 'not measured'}[self.is_met]:<13} {self.bar}{self._figure}"

    @property
    def _figure(self) -> str:
        return f"; measured: {self.measured}" if self.measured else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The seconds (or another ``figure``) of ``slower`` are at least ``times`` those of ``faster``, on one set."""

    set: str
    slower: str
    faster: str
    times: float
    figure: str = "seconds"

    def verdict(self, measured: SetResults) -> Verdict:
        """Return whether the ratio of the medians is large enough."""
        rounds = measured.get(self.set, {}).get("results", {})
        if not rounds.get(self.slower) or not rounds.get(self.faster):
            return Verdict(str(self), "", None)
        ratio = median(rounds[self.slower], self.figure) / median(rounds[self.faster], self.figure)
        return Verdict(str(self), f"{ratio:.2f}", ratio >= self.times)

    def __str__(self) -> str:
        return f"{self.set}: {LABELS[self.slower]} / {LABELS[self.faster]}, {_FIGURES[self.figure]}: {self.times:.2f}"


_FIGURES = {
    "seconds": "at least",
    "cpu_seconds": "CPU time, at least",
    "bytes": "size of the new files, at least",
    "run": "a plan from claim to completion, at least",
}
BARS = (
    Bar(set="B", slower="cat", faster="stitch", times=1 / 1.15),
    Bar(set="A", slower="cat", faster="stitch", times=1 / 1.6),
    Bar(set="A", slower="arrow", faster="hybrid", times=1 / 1.1),
    *(Bar(set=name, slower="spark", faster="arrow", times=4.5) for name in "AB"),
    *(Bar(set=name, slower="spark", faster="arrow", times=5.0, figure="cpu_seconds") for name in "AB"),
    *(Bar(set=name, slower="spark", faster="arrow", times=1.0, figure="bytes") for name in "AB"),
    *(Bar(set=name, slower="duckdb", faster="arrow", times=1.0) for name in "AB"),
    Bar(set="C", slower="spark", faster="plan-stitch", times=12.0, figure="run"),
    Bar(set="C", slower="spark", faster="plan-arrow", times=8.0, figure="run"),
    Bar(set="A", slower="arrow", faster="auto", times=1 / 1.1),
    Bar(set="B", slower="stitch", faster="auto", times=1 / 1.1),
    Bar(set="C", slower="arrow", faster="auto", times=1 / 1.1),
    Bar(set="A", slower="iceberg", faster="plan-stitch", times=7.0),
    Bar(set="A", slower="iceberg", faster="plan-arrow", times=3.5),
    Bar(set="A", slower="delta", faster="plan-stitch", times=3.0),
    Bar(set="A", slower="delta", faster="plan-arrow", times=2.5),
)
#: the bars of ``bench/formats.py``; ``rewrite`` are the rounds of Iceberg's compaction with its best settings
FORMAT_BARS = (
    Bar(set="large", slower="rewrite", faster="iceberg-stitch", times=10.0),
    *(Bar(set=name, slower="rewrite", faster="iceberg-arrow", times=3.5) for name in ("small", "large", "many")),
    *(Bar(set=name, slower="rewrite", faster="iceberg-auto", times=3.0) for name in ("deletes", "vectors")),
)
MEMORY_MIB, PLANNING_TIMES, PLANNING_MIB = 400.0, 12.0, 1.2 * 1024


def format_verdicts(measured: SetResults) -> Iterator[Verdict]:
    """Yield every bar of ``bench/formats.py``."""
    for bar in FORMAT_BARS:
        yield bar.verdict({name: _with_best_rewrite(found) for name, found in measured.items()})


def _with_best_rewrite(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the results of a set, with ``rewrite`` as the rounds of the faster settings of Iceberg's compaction."""
    rounds = [found["results"][kind] for kind in ("rewrite-2", "rewrite-8") if found["results"].get(kind)]
    return {"results": {**found["results"], "rewrite": min(rounds, key=median)}} if rounds else found


def verdicts(measured: SetResults) -> Iterator[Verdict]:
    """Yield every bar of ``bench/rewriting.py``."""
    for bar in BARS:
        yield bar.verdict(measured)
    rounds = measured.get("A", {}).get("results", {})
    for engine in ("stitch", "arrow"):
        bar = f"A: a plan with {engine} takes at most 1.25 times the engine's own time and 2 s"
        own, plan = rounds.get(engine), rounds.get(f"plan-{engine}")
        if own and plan:
            alone, whole = median(own), median(plan)
            yield Verdict(bar, f"{whole:.2f} s and {alone:.2f} s", whole <= alone * 1.25 + 2)
        else:
            yield Verdict(bar, "", None)
    memory = measured.get("M", {})
    for engine in ("stitch", "hybrid", "arrow"):
        bar = f"one group of 2 GiB: memory of a task with {engine} above the idle worker, at most {MEMORY_MIB:.0f} MiB"
        found = memory.get(engine)
        yield Verdict(bar, "" if not found else f"{found['mib']:.0f}", found["mib"] <= MEMORY_MIB if found else None)
    planning = measured.get("D", {})
    found = [planning.get(size) for size in ("1000000", "10000000")]
    few, many = found
    times = f"10 million slices planned, at most {PLANNING_TIMES:.0f} times the CPU time of 1 million"
    space = f"10 million slices planned, memory above their listing, at most {PLANNING_MIB:.0f} MiB"
    if few and many:
        ratio = many["cpu_seconds"] / few["cpu_seconds"]
        yield Verdict(times, f"{ratio:.1f}", ratio <= PLANNING_TIMES)
        yield Verdict(space, f"{many['mib']:.0f}", many["mib"] <= PLANNING_MIB)
    else:
        yield Verdict(times, "", None)
        yield Verdict(space, "", None)


def median(rounds: list[dict[str, Any]], figure: str = "seconds") -> float:
    """Return the median of a figure; ``run`` is the time from a plan's claim to its completion, if there is a plan."""
    if figure == "run":
        return statistics.median(float(one["steps"].get("run", one["seconds"])) for one in rounds)
    return statistics.median(float(one[figure]) for one in rounds)
