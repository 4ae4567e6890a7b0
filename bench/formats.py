# SPDX-License-Identifier: Apache-2.0
"""Whole plans of lakefold on Iceberg tables against Iceberg's own compaction, on the same files, in one run.

The files are TPC-H's lineitem, compressed by zstd, in three sets: ``small``, 200 files of about 1 MB in 2 partitions;
``large``, 60 files of about 14 MB in 6 partitions; ``many``, 5,000 files of about 40 KB in 500 partitions. ``deletes``
and ``vectors`` are the tables of ``small`` after a DELETE by merge-on-read, which deleted 3.6 % of the rows in each
file: in format version 2 by position delete files, in version 3 by deletion vectors. A whole plan is a scan, planning,
rewriting, verification and commit.

Iceberg's ``rewrite_data_files`` runs with the same target size, once with as many groups at once as there are cores and
once with 8; the bars take the faster one. PyIceberg has no compaction: each partition is read and written again, and
one overwrite exchanges the files; it can't write tables of version 3. DuckDB's extension for Iceberg can't rewrite
tables; its figure is a ``COPY`` of the files, without a commit, on tables without deletes.

Processes, rounds, figures and the comparison of rows are those of ``bench/rewriting.py``. ``--sets`` and ``--ways``
choose. Files and results are kept in ``--keep``; if a run is interrupted, the next run continues after the last
rewrite. Exits 1 if a bar is missed.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Needed to run from a clone without an installation.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import iceberg_ways
from bench.bars import format_verdicts
from bench.iceberg_ways import ICEBERG_WAYS, TABLE_FILE, TableKind
from bench.lineitem import ICEBERG_SETS, write_iceberg_set
from bench.report import Page, machine, markdown
from bench.rewriting import Kept, measure

DELETED = "l_linenumber = 7"
#: each set: its files, and its table
TABLES = {
    "small": ("small", TableKind()),
    "large": ("large", TableKind()),
    "many": ("many", TableKind()),
    "deletes": ("small", TableKind(deleted=DELETED)),
    "vectors": ("small", TableKind(version=3, deleted=DELETED)),
}
#: of lakefold's engines only ``arrow`` rewrites files with row-level deletes
WAYS_WITH_DELETES = ("iceberg-auto", "rewrite-2", "rewrite-8", "pyiceberg")
#: the newest format version of which PyIceberg (0.12) writes manifests
MAX_PYICEBERG_VERSION = 2
FORMATS = Page(
    title="Whole plans on Iceberg tables",
    introduction="`make bench-formats` writes this page from its last complete run. `python bench/formats.py --help` "
    "and `bench/iceberg_ways.py` describe what is measured, and how.",
    titles={
        "small": "small: 200 files of 1 MB in 2 partitions",
        "large": "large: 60 files of 14 MB in 6 partitions",
        "many": "many: 5,000 files of 40 KB in 500 partitions",
        "deletes": "deletes: small, with position delete files",
        "vectors": "vectors: small, in version 3 with deletion vectors",
    },
    notes={
        "deletes": "lakefold rewrites files with position deletes by `arrow`. Its verification reads all values of the "
        "inputs and outputs once more, which `rewrite_data_files` does not.",
        "vectors": "lakefold rewrites files with deletion vectors by `arrow`, which stores the id of each row and the "
        "number of its last change. Its verification reads all values once more, and compares the ids and numbers of "
        "all rows.",
    },
    verdicts=format_verdicts,
    reference="rewrite-2",
    reference_name="rewrite_data_files'",
)


def measure_table(keep: Path, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one set and return its results."""
    import pyarrow.compute as pc

    shrink = arguments.shrink
    suffix = "" if shrink == 1 else f"-{shrink}"
    files, table = TABLES[name]
    source = keep / f"iceberg-{files}{suffix}"
    write_iceberg_set(source, ICEBERG_SETS[files].part(shrink))
    kept = Kept(stored(keep, name, shrink))
    kinds = [kind for kind in arguments.ways if not table.deleted or kind in WAYS_WITH_DELETES]
    if table.version > MAX_PYICEBERG_VERSION:
        kinds = [kind for kind in kinds if kind != "pyiceberg"]
    print(f"\n{FORMATS.titles[name]}; load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="run-", dir=keep) as temporary:
        work = Path(temporary)
        for kind in kinds:
            (work / kind).mkdir()
            (work / kind / TABLE_FILE).write_text(json.dumps(asdict(table)))
        deleted = pc.field("l_linenumber") == 7 if table.deleted else None
        program = Path(iceberg_ways.__file__)
        measure(source, kinds, arguments.rounds, kept, work, program=program, deleted=deleted)
    return {"results": kept.results, "loads": kept.loads}


def stored(keep: Path, name: str, shrink: int) -> Path:
    """Return the file with the results of one set."""
    return keep / f"iceberg-{name}{'' if shrink == 1 else f'-{shrink}'}.json"


def main() -> int:
    """Write the files, measure and print; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--ways", nargs="+", choices=list(ICEBERG_WAYS), default=list(ICEBERG_WAYS))
    parser.add_argument("--rounds", type=int, default=3, help="how often each way rewrites a set")
    parser.add_argument("--shrink", type=int, default=1, help="measure only one of so many files and partitions")
    parser.add_argument("--keep", type=Path, help="keep files and results in this directory, or use those in it")
    parser.add_argument("--page", type=Path, help="write the results to this file as Markdown, if all was measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakefold-bench-") as temporary:
        keep = (arguments.keep or Path(temporary)).absolute()
        keep.mkdir(parents=True, exist_ok=True)
        measured = {name: measure_table(keep, name, arguments) for name in arguments.sets}
        page = markdown(measured, machine(keep), arguments.shrink, FORMATS)
        print(f"\n{page}")
        found = list(format_verdicts(measured))
        print(*found, sep="\n")
        everything = (set(TABLES), len(ICEBERG_WAYS), 1)
        if arguments.page and (set(arguments.sets), len(arguments.ways), arguments.shrink) == everything:
            arguments.page.write_text(page)
        for name in arguments.sets:
            # The next run measures again.
            kept = stored(keep, name, arguments.shrink)
            kept.rename(kept.with_suffix(".last.json"))
    return int(any(one.is_met is False for one in found))


if __name__ == "__main__":
    sys.exit(main())
