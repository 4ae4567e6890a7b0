# SPDX-License-Identifier: Apache-2.0
"""The chart of README: seconds of each way to rewrite sets A and B, from the last complete ``bench/rewriting.py``."""

import json
import statistics
import sys
from pathlib import Path

if __name__ == "__main__":
    # Needed to run from a clone without an installation.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lakefold", "font.size": 9, "font.family": "sans-serif"})

from matplotlib import pyplot  # noqa: E402

from bench.lineitem import SETS  # noqa: E402
from bench.ways import LABELS  # noqa: E402

IMAGE = Path(__file__).resolve().parent.parent / "docs/images/rewriting.svg"
#: readable on white and on GitHub's dark ground
OWN, PEER, LIMIT, TEXT = "#2f81f7", "#8b949e", "#3fb950", "#768390"


def draw(results: Path) -> None:
    """Draw the median seconds of the results in a directory."""
    names = [name for name in "AB" if (results / f"{name}.last.json").exists()]
    figure, axes = pyplot.subplots(1, len(names), figsize=(5 * len(names), 3.6), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        rounds = json.loads((results / f"{name}.last.json").read_text())["results"]
        seconds = {kind: statistics.median(one["seconds"] for one in found) for kind, found in rounds.items()}
        kinds = sorted(seconds, key=seconds.__getitem__, reverse=True)
        colours = [LIMIT if kind == "cat" else OWN if "lakefold" in LABELS[kind] else PEER for kind in kinds]
        bars = axis.barh([LABELS[kind] for kind in kinds], [seconds[kind] for kind in kinds], color=colours)
        axis.bar_label(bars, [f"{seconds[kind]:.1f} s" for kind in kinds], padding=3, color=TEXT)
        wanted = SETS[name]
        axis.set_title(f"{wanted.files:,} files of {wanted.file_bytes / 1e6:g} MB, seconds", color=TEXT, fontsize=10)
        axis.set_xlim(0, max(seconds.values()) * 1.15)
        axis.tick_params(colors=TEXT, length=0)
        axis.set_xticks([])
        axis.spines[:].set_visible(False)
    figure.tight_layout()
    figure.savefig(IMAGE, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
