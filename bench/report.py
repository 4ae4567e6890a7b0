# SPDX-License-Identifier: Apache-2.0
"""The results of ``bench/rewriting.py`` and of ``bench/formats.py`` as pages of Markdown, with the machine."""

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.bars import SetResults, Verdict, median, verdicts
from bench.ways import DELTA, ICEBERG, LABELS

_PACKAGES = ("pyarrow", "pyspark", "duckdb", "polars", "deltalake", "pyiceberg")
_TITLES = {
    "A": "A: 2,000 files of 1 MB in 20 partitions",
    "B": "B: 200 files of 14 MB in 20 partitions",
    "C": "C: 5,000 files of 40 KB in 500 partitions",
    "R": "R: 200 files of 1 MB of random bytes and doubles, gzip: lakefold's worst case for decoding",
    "W": "W: 200 files of 600 columns: lakefold's worst case for copying",
}
_NOTES = {
    "R": "Every engine that decodes spends its time in zlib, and the values themselves cost little.",
    "W": "A file has 600 column chunks, each with an entry in the footer and with page indexes, which Spark reads in "
    "compiled code and `stitch` in Python.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The parts of a page besides its results: the titles of sets, notes on some of them, and the bars.

    The speed of ``reference`` is that to which all ways are compared; ``reference_name`` is its name in a table's head.
    """

    title: str
    introduction: str
    titles: Mapping[str, str]
    notes: Mapping[str, str]
    verdicts: Callable[[SetResults], Iterable[Verdict]]
    reference: str
    reference_name: str


REWRITING = Page(
    title="Results of the benchmark",
    introduction="`make bench` writes this page from its last complete run. `python bench/rewriting.py --help` and "
    "`bench/ways.py` describe what is measured, and how.",
    titles=_TITLES,
    notes=_NOTES,
    verdicts=verdicts,
    reference="spark",
    reference_name="Spark's",
)


def machine(folder: Path) -> dict[str, str]:
    """Return the machine and the versions of programs; ``folder`` is in the file system of the files."""
    found = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "processor": f"{os.cpu_count()} cores, {_first(Path('/proc/cpuinfo'), 'model name')}",
        "memory": f"{int(_first(Path('/proc/meminfo'), 'MemTotal').split()[0]) / (1 << 20):.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}, files on {_file_system(folder)}",
        "Python": platform.python_version(),
        "Java": _java(),
    }
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found | {"Iceberg": ICEBERG.rpartition(":")[2], "Delta": DELTA.rpartition(":")[2]}


def markdown(measured: SetResults, on: Mapping[str, str], shrink: int, page: Page = REWRITING) -> str:
    """Return the page."""
    lines = [
        f"# {page.title}",
        "",
        page.introduction,
        "",
        *(["**Only a part of each set was measured: one of " + f"{shrink} partitions.**", ""] if shrink > 1 else []),
        *(f"- {name}: {value}" for name, value in on.items()),
        "",
        "## Bars",
        "",
        *_table(
            ("bar", "measured", ""),
            [
                (one.bar, one.measured, {True: "met", False: "**missed**", None: "not measured"}[one.is_met])
                for one in page.verdicts(measured)
            ],
        ),
        "",
    ]
    for name, title in page.titles.items():
        if measured.get(name, {}).get("results"):
            lines += _set_lines(page, title, page.notes.get(name), measured[name])
    if memory := measured.get("M"):
        rows = [
            (one, f"{of['seconds']:.1f}", f"{of['mib']:.0f}", f"{of['idle_mib']:.0f}") for one, of in memory.items()
        ]
        lines += ["## One group of 2,000 files and 2 GB", ""]
        lines += [*_table(("engine", "seconds", "MiB above idle", "MiB idle"), rows), ""]
    if planning := measured.get("D"):
        rows = [
            (f"{int(size):,}", f"{of['seconds']:.2f}", f"{of['cpu_seconds']:.2f}", f"{of['mib']:.0f}")
            for size, of in planning.items()
        ]
        lines += ["## Planning", "", *_table(("slices", "seconds", "CPU s", "MiB above the listing"), rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def _set_lines(page: Page, title: str, note: str | None, found: Mapping[str, Any]) -> Iterator[str]:
    results: Mapping[str, list[dict[str, Any]]] = found["results"]
    yield from (f"## {title}", "")
    if note:
        yield from (note, "")
    loads = found.get("loads", [])
    rounds = max(map(len, results.values()))
    yield f"{rounds} round{'s' * (rounds > 1)}; load of the machine before each round: " + (
        ", ".join(f"{load:.1f}" for load in loads) + "."
    )
    yield ""
    of_cat = median(results["cat"]) if results.get("cat") else None
    reference = median(results[page.reference]) if results.get(page.reference) else None
    rows = []
    for kind, rounds in results.items():
        if not rounds:
            continue
        seconds = [one["seconds"] for one in rounds]
        last = rounds[-1]
        rows.append(
            (
                LABELS[kind],
                f"{statistics.median(seconds):.2f}",
                f"{min(seconds):.2f}–{max(seconds):.2f}",
                f"{median(rounds) / of_cat:.2f}" if of_cat else "",
                f"{reference / median(rounds):.1f}" if reference else "",
                f"{median(rounds, 'cpu_seconds'):.1f}",
                f"{median(rounds, 'peak_mib'):.0f}",
                f"{last['files']:,}",
                f"{last['row_groups']:,}",
                f"{last['bytes'] / 1e6:.0f}",
            )
        )
    faster = f"times {page.reference_name} speed"
    head = ("", "seconds", "range", "× cat", faster, "CPU s", "peak MiB", "files", "row groups", "MB")
    yield from _table(head, rows)
    yield ""
    for kind, rounds in results.items():
        if rounds and (steps := rounds[-1]["steps"]):
            listed = ", ".join(f"{step} {value:.2f} s" for step, value in steps.items())
            yield from (f"Steps of {LABELS[kind]}: {listed}.", "")
    if readers := found.get("readers"):
        yield from ("Seconds of queries on the new files:", "")
        queries = next(iter(readers.values()))
        rows = [(query, *(f"{times[query]:.3f}" for times in readers.values())) for query in queries]
        yield from _table(("", *readers), rows)
        yield ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _first(path: Path, key: str) -> str:
    found = (line.partition(":")[2].strip() for line in path.read_text().splitlines() if line.startswith(key))
    return next(found, "unknown")


def _file_system(folder: Path) -> str:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [(len(where), kind) for where, kind in mounts if folder.resolve().is_relative_to(where)]
    return max(inside)[1] if inside else "unknown"


def _java() -> str:
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.partition('"')[2].partition('"')[0]
