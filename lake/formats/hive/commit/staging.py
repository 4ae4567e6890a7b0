# SPDX-License-Identifier: Apache-2.0
"""The directories of a new version, and the tasks by which engines fill it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from lake.engines import RewriteTask, build_task
from lake.formats.hive.catalog import refusals
from lake.formats.hive.catalog.table_schema import spark_schema_json
from lake.formats.hive.commit import commit_record
from lake.formats.hive.commit.preconditions import PartitionSnapshot
from lake.formats.hive.commit.version_names import (
    ATTEMPTS_DIR,
    data_dir,
    location_in_version,
    output_file_name,
    version_directory,
)
from lake.metastore import MetastoreTable
from lake.model import TableRef
from lake.plan import Plan
from lake.storage.filesystems import file_io_of


def rewrite_tasks(
    ref: TableRef, plan: Plan, groups: Sequence[int], version: str, table: MetastoreTable
) -> list[RewriteTask]:
    """Return the rewrite tasks of some groups of a plan: the input files, and the files to write in ``version``."""
    attempts, schema = f"{data_dir(ref)}/{version}/{ATTEMPTS_DIR}", spark_schema_json(table)
    suffix = str(refusals.file_format_of(table)).lower()

    def outputs(index: int) -> list[str]:
        count = plan.groups[index].output_files
        return [f"{attempts}/{output_file_name(version, index, number, suffix)}" for number in range(count)]

    return [build_task(ref, index, plan.groups[index], outputs(index), schema=schema) for index in groups]


def create_version(ref: TableRef, version: str, partitions: Mapping[str, PartitionSnapshot]) -> None:
    """Create the directories of a version, with the owner and permissions of the partitions' present directories."""
    files, home = file_io_of(ref.location), data_dir(ref)
    with suppress(FileExistsError):
        files.make_directory(home)
    files.copy_permissions(home, ref.location)
    commit_record.migrate_legacy_data_dir(ref)
    for directory in (f"{home}/{version}", f"{home}/{version}/{ATTEMPTS_DIR}"):
        files.make_directory(directory)
        files.copy_permissions(directory, ref.location)
    for name, one in partitions.items():
        directory = f"{home}/{version}"
        for part in location_in_version(version, name).split("/")[2:]:
            directory = f"{directory}/{part}"
            with suppress(FileExistsError):
                files.make_directory(directory)
                files.copy_permissions(directory, one.partition.location)


def remove_version(ref: TableRef, version: str) -> None:
    """Remove a version. The directory of attempts, which shows that lakefold made the version, is removed last.

    The record is removed first: with the record, the remains of the version would look like a commit.
    """
    files, directory = file_io_of(ref.location), version_directory(ref, version)
    commit_record.withdraw_record(ref, version)
    with suppress(FileNotFoundError):
        for entry in files.list(directory):
            if entry.name != ATTEMPTS_DIR:
                files.remove_own_tree(entry.path) if entry.is_directory else files.remove_own_file(entry.path)
    files.remove_own_tree(directory)
