# SPDX-License-Identifier: Apache-2.0
"""Makes the directories of a new version, and the tasks by which engines fill it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from lake.engines import Task, task_of
from lake.errors import Conflict
from lake.filesystems import files_of
from lake.formats.hive import commits, refusals
from lake.formats.hive.columns import schema_of
from lake.formats.hive.commits import ATTEMPTS, home_of, output_name
from lake.formats.hive.evidence import Seen
from lake.locations import file_at
from lake.metastore import Table
from lake.model import TableRef
from lake.plan import Plan


def tasks_of(ref: TableRef, plan: Plan, groups: Sequence[int], version: str, table: Table) -> list[Task]:
    """The rewrite of each of these groups of a plan: its files, and those to be made in ``version``."""
    attempts, schema = f"{home_of(ref)}/{version}/{ATTEMPTS}", schema_of(table)
    suffix = str(refusals.kind_of(table)).lower()

    def outputs(index: int) -> list[str]:
        count = plan.groups[index].output_files
        return [f"{attempts}/{output_name(version, index, number, suffix)}" for number in range(count)]

    return [task_of(ref, index, plan.groups[index], outputs(index), schema=schema) for index in groups]


def make_version(ref: TableRef, version: str, seen: Mapping[str, Seen]) -> None:
    """Make the directories of a version; they belong to whom the partitions' own belong to."""
    files, home = files_of(ref.location), home_of(ref)
    with suppress(FileExistsError):
        files.make_directory(home)
    files.take_after(home, ref.location)
    commits.leave_former_home(ref)
    for directory in (f"{home}/{version}", f"{home}/{version}/{ATTEMPTS}"):
        files.make_directory(directory)
        files.take_after(directory, ref.location)
    for name, one in seen.items():
        directory = f"{home}/{version}"
        for part in commits.place_in(version, name).split("/")[2:]:
            directory = f"{directory}/{part}"
            with suppress(FileExistsError):
                files.make_directory(directory)
                files.take_after(directory, one.place.location)


@contextmanager
def named_by_slices(ref: TableRef, plan: Plan, tasks: Sequence[Task]) -> Iterator[None]:
    """Have a Conflict of the block name files that are to be left alone as the plan's slices name them."""
    try:
        yield
    except Conflict as error:
        if len(error.args) < 2:
            raise
        names = {
            file_at(ref.location, str(item.path)): str(item.path)
            for task in tasks
            for item in plan.groups[task.group].slices
        }
        named = [
            replace(one, quarantine=tuple(names.get(path, path) for path in one.quarantine)) for one in error.args[1]
        ]
        raise Conflict(error.args[0], tuple(named)) from error
