# SPDX-License-Identifier: Apache-2.0
"""Replay one seed, or look for the first that fails: ``PYTHONPATH=tests .venv/bin/python -m simulation --help``."""

import argparse
import sys
import time

from simulation.defects import DEFECTS
from simulation.shrink import explain, first_failure


def main() -> int:
    """Print the violated invariant with the fewest items that reproduce it. Returns 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("FIRST", "END"), help="look for one that fails")
    parser.add_argument("--defect", choices=sorted(DEFECTS), default="", help="with this defect planted")
    given = parser.parse_args()
    seed, began = given.seed, time.process_time()
    if seed is None:
        first, end = given.seeds or (0, 1000)
        seed = first_failure(range(first, end), planted(given.defect))
        took = time.process_time() - began
        ran = end - first if seed is None else seed - first + 1
        print(f"{ran} seeds in {took:.1f} s of CPU, {took / ran * 1000:.1f} ms each")
        if seed is None:
            return 0
    failure = explain(seed, planted(given.defect), given.defect)
    print(failure or f"seed {seed}: everything held")
    return int(failure is not None)


def planted(name: str):  # type: ignore[no-untyped-def]
    """Return the defect of this name; None if there is no name."""
    return DEFECTS[name]() if name else None


sys.exit(main())
