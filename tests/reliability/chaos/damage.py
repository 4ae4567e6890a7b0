# SPDX-License-Identifier: Apache-2.0
"""Damage to the files of a table: lakefold reports it, and makes none of it permanent.

Each kind is done to a copy that has small files to plan. Afterwards it is undone: then every reader must see the
ledger's rows again, which a rewrite of what was damaged would have made impossible.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from harness import Installation

from chaos.cells import BLOOM, LOCK, Cell, Setting, writer_options
from chaos.faults import TABLE
from chaos.ledger import Ledger
from chaos.readers import differences, in_hudi_rs, in_spark
from chaos.steps import draw
from chaos.writer import Writer

_STEPS = ("bulk_insert", "bulk_insert", "upsert", "bulk_insert")
Undo = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A kind of damage: what does it to one of ``files`` and gives back what undoes it."""

    do: Callable[[Path], Undo]
    logs: bool = False
    #: whether ``verify`` must find a difference; directories that no reader opens are none
    is_found: bool = True


def _lost(file: Path) -> Undo:
    aside = file.with_name(f".{file.name}.lost")
    file.rename(aside)
    return lambda: aside.rename(file) and None


def _truncated(file: Path) -> Undo:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    checksum = file.with_name(f".{file.name}.crc")
    kept = checksum.read_bytes() if checksum.exists() else None
    checksum.unlink(missing_ok=True)

    def undo() -> None:
        file.write_bytes(content)
        if kept is not None:
            checksum.write_bytes(kept)

    return undo


def _linked(to: Callable[[Path], Path]) -> Callable[[Path], Undo]:
    def do(file: Path) -> Undo:
        link = to(file)
        made = [parent for parent in link.parents if not parent.exists()]
        link.parent.mkdir(parents=True, exist_ok=True)
        os.link(file, link)

        def undo() -> None:
            link.unlink()
            for parent in made:
                shutil.rmtree(parent, ignore_errors=True)

        return undo

    return do


def _another_group(file: Path) -> Path:
    """The same rows in a file group of their own."""
    group, _, rest = file.name.partition("_")
    return file.with_name(f"{'0' * 8}{group[8:]}_{rest}")


def _another_attempt(file: Path) -> Path:
    """The same rows as an attempt of a task that had died would have left them."""
    group, _, instant = file.name.split("_")
    return file.with_name(f"{group}_9-99-999_{instant}")


DAMAGES: Mapping[str, Damage] = {
    "a base file is lost": Damage(do=_lost),
    "a base file is truncated": Damage(do=_truncated),
    "a log is lost": Damage(do=_lost, logs=True),
    "a log is truncated": Damage(do=_truncated, logs=True),
    "a file is there as another group": Damage(do=_linked(_another_group)),
    "a file is there as another attempt": Damage(do=_linked(_another_attempt)),
    "a stray file": Damage(do=_linked(lambda file: file.with_name("part-00000-of-nobody.parquet"))),
    "a stray directory in a partition": Damage(
        do=_linked(lambda file: file.parent / "_temporary" / "0" / file.name), is_found=False
    ),
    "a backup in the table": Damage(
        do=_linked(lambda file: file.parents[1] / "backup" / file.parent.name / file.name), is_found=False
    ),
}


class Patient:
    """A table with small files to plan, made of what a run has left; ``problems`` are what was wrong."""

    def __init__(self, cell: Cell, setting: Setting, seed: int, lake: Path, home: Path, spark: Any) -> None:
        self._cell, self._setting, self._seed, self._spark = cell, setting, seed, spark
        self._home = home / "damage"
        self._table = self._home / "trips"
        shutil.copytree(lake, self._table)
        shutil.copytree(home / "ledger", self._home / "ledger")
        ledger = Ledger(self._home / "ledger")
        writer = Writer(spark, self._table, ledger, writer_options(cell, setting), 40)
        writer.settle()
        for operation in _STEPS:
            writer.send(draw(seed, ledger.next_number(), writer.state, 40, only=(operation,)))
        self.state = writer.state
        self.problems: list[str] = []

    def suffer(self, name: str) -> str:
        """One kind of damage to a copy, lakefold on it, and the damage undone; the file, empty where there is none."""
        damage = DAMAGES[name]
        home = self._home / name.replace(" ", "-")
        home.mkdir()
        base = home / "lake" / "trips"
        shutil.copytree(self._table, base)
        files = sorted(self._live(base, damage.logs))
        if not files:
            return ""
        file = Random(f"damage/{self._seed}/{name}").choice(files)
        with self._done(damage, file):
            self._treat(name, damage, home, base)
        for reader, found in {
            "Spark": in_spark(self._spark, base, self.state),
            "hudi-rs": in_hudi_rs(base, self.state),
        }.items():
            if found is not None and (wrong := differences(self.state, *found)):
                self.problems.append(f"{name} ({file}), undone, {reader}: {wrong}")
        return file.name

    @contextmanager
    def _done(self, damage: Damage, file: Path) -> Iterator[None]:
        undo = damage.do(file)
        try:
            yield
        finally:
            undo()

    def _treat(self, name: str, damage: Damage, home: Path, base: Path) -> None:
        installation = Installation(
            home=home,
            url=f"sqlite:///{home}/lakefold.db",
            policy={"compact_log_files": 1, "max_attempts": 2, "retention": "1h"},
            write_options={**LOCK, **BLOOM} if self._cell.occ else {},
            concurrency="occ" if self._cell.occ else "single_writer",
            tables={TABLE: base},
        )
        verified = installation.run("verify", TABLE, "--rows", expect=None)
        if damage.is_found and verified.returncode != 3:
            self.problems.append(f"{name}: verify exits {verified.returncode}: {verified.stdout} {verified.stderr}")
        installation.run("plans", "request", TABLE, expect=None)
        installation.work(self._spark)

    @staticmethod
    def _live(base: Path, logs: bool) -> list[Path]:
        """Files of the newest slices, as hudi-rs lists them."""
        from hudi import HudiTableBuilder

        slices = HudiTableBuilder.from_base_uri(str(base)).build().get_file_slices()
        if logs:
            return [base / path for entry in slices for path in entry.log_files_relative_paths()]
        return [base / entry.base_file_relative_path() for entry in slices if entry.base_file_name]
