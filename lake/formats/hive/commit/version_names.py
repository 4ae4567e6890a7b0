# SPDX-License-Identifier: Apache-2.0
"""The names of versions, of the files in them, and of the properties by which partitions refer to them."""

import re
from collections.abc import Collection, Mapping

from lake.formats.hive.catalog.tables import DATA_DIR, DATA_DIRS, UNPARTITIONED_DIR
from lake.formats.hive.files.listing import ListedFile
from lake.model import TableRef
from lake.storage.filesystems import file_io_of

OUTPUT_FILE_PATTERN = r"part-(?P<version>.+-e\d+-\d+)-\d+-\d+\.\w+"
"""The names of files that rewrites make, as ``re`` and RE2 read it."""

_OUTPUT_FILE = re.compile(OUTPUT_FILE_PATTERN)

ATTEMPTS_DIR = "_attempts"
"""Where in a version engines write: a task that outlives its attempt never reaches what readers read."""

PLAN_KEY, EPOCH_KEY, VERSION_KEY = "lakefold.plan", "lakefold.epoch", "lakefold.version"
"""Properties of a partition that a commit has moved."""

RELOCATION_KEY = "lakefold.moved"
"""The property, in place of those, of a partition that was moved since by no plan: back to where a writer was."""

_TOKEN_KEYS = frozenset({PLAN_KEY, EPOCH_KEY, VERSION_KEY, RELOCATION_KEY})

#: what is called by ``new_version_name``
_VERSION_NAME = re.compile(r"(?P<plan>.+)-e(?P<epoch>\d+)-\d+")

#: properties that are wrong once files were added or replaced: readers answer counts from them
_STALE_STATISTICS = frozenset({"COLUMN_STATS_ACCURATE", "numRows", "rawDataSize"})

RECORD_FILE = "commit.json"


def data_dir(ref: TableRef) -> str:
    """Where the versions of a table are made."""
    return f"{ref.location}/{DATA_DIR}"


def data_dirs(ref: TableRef) -> tuple[str, ...]:
    """Where the versions of a table may be: those of earlier releases have another directory."""
    return tuple(f"{ref.location}/{home}" for home in DATA_DIRS)


def version_directory(ref: TableRef, version: str) -> str:
    """Where a version is; where it would be made if it is nowhere."""
    files = file_io_of(ref.location)
    here, before = (f"{home}/{version}" for home in data_dirs(ref))
    return before if not files.exists(here) and files.exists(before) else here


def version_of_directory(ref: TableRef, directory: str) -> str | None:
    """The version that a directory is in; None for one that is in none."""
    for home in data_dirs(ref):
        if directory.startswith(f"{home}/"):
            return directory.removeprefix(f"{home}/").partition("/")[0]
    return None


def location_in_version(version: str, partition: str) -> str:
    """Where a partition, or '' a table without any, is in a new version; relative to the table's own directory."""
    return f"{DATA_DIR}/{version}/{partition or UNPARTITIONED_DIR}"


def record_path_beside(location: str) -> str:
    """What says beside a place in a version what its commit did; relative as the place is."""
    return "/".join([*location.split("/")[:2], RECORD_FILE])


def new_version_name(plan_id: str, epoch: int, nanoseconds: int) -> str:
    """The name of a version, which no other attempt has."""
    return f"{plan_id}-e{epoch}-{nanoseconds}"


def token_parameters(token: str) -> dict[str, str]:
    """The properties by which a partition names a move as its last."""
    version = _VERSION_NAME.fullmatch(token)
    return (
        {PLAN_KEY: version["plan"], EPOCH_KEY: version["epoch"], VERSION_KEY: token}
        if version
        else {RELOCATION_KEY: token}
    )


def relocated_parameters(parameters: Mapping[str, str], token: str, files: Collection[ListedFile]) -> dict[str, str]:
    """The properties of a partition after the move ``token``: that name, and the counts of its ``files``.

    ``parameters`` are those before the move. Names of earlier moves are dropped, and counts that may not hold any more.
    """
    kept = {name: value for name, value in parameters.items() if name not in _STALE_STATISTICS | _TOKEN_KEYS}
    return {
        **kept,
        **token_parameters(token),
        "numFiles": str(len(files)),
        "totalSize": str(sum(file.bytes for file in files)),
    }


def output_file_name(version: str, group: int, number: int, suffix: str) -> str:
    """The name of a file that a rewrite makes, which no writer's file has."""
    return f"part-{version}-{group}-{number}.{suffix}"


def version_of_output(file_name: str) -> str | None:
    """The version whose rewrite made the file of this name; None for a writer's."""
    found = _OUTPUT_FILE.fullmatch(file_name)
    return found["version"] if found else None


def plan_id_of(version: str) -> str:
    """The plan that made a version."""
    return version.rsplit("-", 2)[0]


def version_started_ns(token: str) -> int | None:
    """When the version of that name was begun, in nanoseconds since 1970; None of a move that no plan made."""
    return int(token.rpartition("-")[2]) if _VERSION_NAME.fullmatch(token) else None


def is_version_name(name: str) -> bool:
    """Whether a directory has the name of a version."""
    return _VERSION_NAME.fullmatch(name) is not None


def relocation_token(parameters: Mapping[str, str]) -> str | None:
    """The move that a partition names as its last; None where it names none."""
    return parameters.get(RELOCATION_KEY) or parameters.get(VERSION_KEY)
