# SPDX-License-Identifier: Apache-2.0
"""TPC-H's lineitem as Parquet files, in the sizes and numbers that the benchmarks rewrite."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

#: at scale 1 lineitem has about this number of bytes as Parquet with snappy
BYTES_A_SCALE = 215_000_000
FILES_A_SCALE = 20
ROWS_A_SCALE = 6_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSet:
    """Files of about ``file_bytes``, equally many in each of ``partitions`` directories ``part=N``.

    Each file has one row group.
    """

    files: int
    file_bytes: int
    partitions: int

    def part(self, shrink: int) -> "FileSet":
        """Return the set with only one of ``shrink`` partitions."""
        return FileSet(
            files=self.files // shrink, file_bytes=self.file_bytes, partitions=max(1, self.partitions // shrink)
        )

    @property
    def scale(self) -> float:
        """Return the scale of lineitem at which the files have their size."""
        return self.files * self.file_bytes / BYTES_A_SCALE


#: the sets of ``bench/rewriting.py``
SETS = {
    "A": FileSet(files=2_000, file_bytes=1_000_000, partitions=20),
    "B": FileSet(files=200, file_bytes=14_000_000, partitions=20),
    # Small files are less compact, and the footer is a tenth of them: these have 40 KB.
    "C": FileSet(files=5_000, file_bytes=24_000, partitions=500),
}
#: the sets of ``bench/formats.py``; ``file_bytes`` is before the files are compressed by zstd instead of snappy
ICEBERG_SETS = {
    "small": FileSet(files=200, file_bytes=1_200_000, partitions=2),
    "large": FileSet(files=60, file_bytes=16_500_000, partitions=6),
    "many": FileSet(files=5_000, file_bytes=30_000, partitions=500),
}


def write_lineitem(folder: Path, scale: int) -> Path:
    """Write lineitem as files of about 10 MB, unless they exist. Returns their directory."""
    found = folder / f"scale-{scale}"
    if not found.exists():
        part = folder / f"scale-{scale}.part"
        generate(part, scale, FILES_A_SCALE * scale)
        part.rename(found)
    return found / "lineitem"


def write_set(folder: Path, wanted: FileSet) -> None:
    """Write the files of a set below ``folder``, unless it exists."""
    if folder.exists():
        return
    part = folder.with_name(f"{folder.name}.part")
    generate(part, wanted.scale, wanted.files, "--row-group-bytes=256MB")
    each = wanted.files // wanted.partitions
    files = sorted((part / "lineitem").glob("*.parquet"))
    if len(files) != wanted.files:
        raise SystemExit(f"tpchgen-cli wrote {len(files)} files instead of {wanted.files}")
    for number, file in enumerate(files):
        directory = part / f"part={number // each}"
        directory.mkdir(exist_ok=True)
        file.rename(directory / file.name)
    (part / "lineitem").rmdir()
    part.rename(folder)


def write_iceberg_set(folder: Path, wanted: FileSet) -> None:
    """Write the files of a set as an Iceberg table's writer does, unless it exists: compressed by zstd, with field ids.

    The directory's number is also in the column ``part``, because Iceberg's files contain partition columns.
    """
    if folder.exists():
        return
    plain, part = folder.with_name(f"{folder.name}.plain"), folder.with_name(f"{folder.name}.part")
    write_set(plain, wanted)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda file: _write_with_ids(file, part / file.relative_to(plain)), plain.rglob("*.parquet")))
    shutil.rmtree(plain)
    part.rename(folder)


def _write_with_ids(source: Path, file: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pq.ParquetFile(source).read()
    number = int(file.parent.name.partition("=")[2])
    rows = rows.append_column("part", pa.array([number] * rows.num_rows, pa.int32()))
    # Neither PyIceberg nor pyarrow filters views of strings, which the generator's files name as Arrow's type.
    kinds = (pa.string() if field.type == pa.string_view() else field.type for field in rows.schema)
    fields = (
        pa.field(name, kind, metadata={"PARQUET:field_id": str(at)})
        for at, (name, kind) in enumerate(zip(rows.schema.names, kinds, strict=True), 1)
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        rows.cast(pa.schema(fields)), file, compression="zstd", row_group_size=rows.num_rows, store_schema=False
    )


def generate(folder: Path, scale: float, files: int, *options: str) -> None:
    """Write lineitem into ``lineitem/`` below ``folder``. Raises SystemExit if the generator is missing."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("tpchgen-cli", path=places)
    if program is None:
        raise SystemExit("tpchgen-cli is missing; `make bench` installs it")
    what = ["--tables=lineitem", f"--parts={files}", f"--output-dir={folder}", "--overwrite", "--quiet"]
    subprocess.run([program, "parquet", "-s", str(scale), *what, *options], check=True)
