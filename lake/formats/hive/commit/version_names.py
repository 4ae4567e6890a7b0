# SPDX-License-Identifier: Apache-2.0
"""The names of versions, of the files in them, and of the properties by which partitions refer to them."""

import re
from collections.abc import Collection, Mapping, Sequence

from lake.formats.hive.catalog.tables import UNPARTITIONED_DIR
from lake.formats.hive.files.listing import ListedFile
from lake.model import TableRef
from lake.plan import LocatedFile
from lake.storage.filesystems import file_io_of
from lake.storage.locations import DATA_DIR, DATA_DIRS, is_below_table

OUTPUT_FILE_PATTERN = r"part-(?P<version>.+-e\d+-\d+)-\d+-\d+\.\w+"
"""The names of files that rewrites write, as a pattern for ``re`` and RE2."""

_OUTPUT_FILE = re.compile(OUTPUT_FILE_PATTERN)

ATTEMPTS_DIR = "_attempts"
"""The directory in a version that engines write to, so that a task that outlives its attempt never reaches readers."""

PLAN_KEY, EPOCH_KEY, VERSION_KEY = "lakefold.plan", "lakefold.epoch", "lakefold.version"
"""The properties of a partition that a plan's commit has relocated."""

RELOCATION_KEY = "lakefold.moved"
"""The property that a partition has instead of the other three if the sweep made its last relocation.

The sweep moves partitions back to an overwritten location, or to the partition's own directory.
"""

_TOKEN_KEYS = frozenset({PLAN_KEY, EPOCH_KEY, VERSION_KEY, RELOCATION_KEY})

#: matches the names that ``new_version_name`` returns
_VERSION_NAME = re.compile(r"(?P<plan>.+)-e(?P<epoch>\d+)-\d+")

#: counts that become wrong when files are added or replaced; readers answer queries from these properties
_STALE_STATISTICS = frozenset({"COLUMN_STATS_ACCURATE", "numRows", "rawDataSize"})

RECORD_FILE = "commit.json"

FILE_ARCHIVE_DIR = "_aside"
"""The directory to which replaced files are moved until their deletion if readers would read them at their location."""


def data_dir(ref: TableRef) -> str:
    """Return the directory in which the table's versions are created."""
    return f"{ref.location}/{DATA_DIR}"


def data_dirs(ref: TableRef) -> tuple[str, ...]:
    """Return the directories that may hold versions of the table; earlier releases used another one."""
    return tuple(f"{ref.location}/{name}" for name in DATA_DIRS)


def version_directory(ref: TableRef, version: str) -> str:
    """Return the directory of a version, or the one in which it would be created if it does not exist."""
    files = file_io_of(ref.location)
    current, earlier = (f"{directory}/{version}" for directory in data_dirs(ref))
    return earlier if not files.exists(current) and files.exists(earlier) else current


def version_of_directory(ref: TableRef, directory: str) -> str | None:
    """Return the version that a directory is in. None if it is in no version."""
    for data_dir in data_dirs(ref):
        if directory.startswith(f"{data_dir}/"):
            return directory.removeprefix(f"{data_dir}/").partition("/")[0]
    return None


def location_in_version(version: str, partition: str) -> str:
    """Return the location of a partition in a new version, relative to the table's directory.

    ``partition`` is '' for a table without partitions.
    """
    return f"{DATA_DIR}/{version}/{partition or UNPARTITIONED_DIR}"


def record_path_beside(location: str) -> str:
    """Return the path of the commit's document for a location in a version. Both paths are relative."""
    return "/".join([*location.split("/")[:2], RECORD_FILE])


def archived_paths(file: LocatedFile) -> Sequence[str]:
    """Return the paths to which a file is moved out of readers' sight, in this release and in earlier ones.

    A file outside of the table's directory stays below its own directory, since the table may be on another volume.
    """
    if is_below_table(file.path):
        return [f"{directory}/{FILE_ARCHIVE_DIR}/{file.modified_ms}/{file.path}" for directory in DATA_DIRS]
    return [f"{file.directory}/{DATA_DIR}/{FILE_ARCHIVE_DIR}/{file.modified_ms}/{file.name}"]


def location_of_archive(directory: str) -> str | None:
    """Return the location outside of the table's directory whose files were archived in ``directory``, below it.

    Both are full paths. None if ``directory`` is no such archive.
    """
    location, found, _ = directory.partition(f"/{DATA_DIR}/{FILE_ARCHIVE_DIR}/")
    return location if found else None


def directory_before_archive(ref: TableRef, directory: str) -> str | None:
    """Return the directory whose files were moved to ``directory``, both as full paths; see ``archived_paths``.

    None if ``directory`` holds no moved files.
    """
    for data_directory in data_dirs(ref):
        if directory.startswith(f"{data_directory}/{FILE_ARCHIVE_DIR}/"):
            below = directory.removeprefix(f"{data_directory}/{FILE_ARCHIVE_DIR}/").partition("/")[2]
            return f"{ref.location}/{below}".rstrip("/")
    return location_of_archive(directory)


def new_version_name(plan_id: str, epoch: int, nanoseconds: int) -> str:
    """Return a name for a version that no other attempt has."""
    return f"{plan_id}-e{epoch}-{nanoseconds}"


def token_parameters(token: str) -> dict[str, str]:
    """Return the properties by which a partition names ``token`` as its last relocation."""
    version = _VERSION_NAME.fullmatch(token)
    return (
        {PLAN_KEY: version["plan"], EPOCH_KEY: version["epoch"], VERSION_KEY: token}
        if version
        else {RELOCATION_KEY: token}
    )


def relocated_parameters(parameters: Mapping[str, str], token: str, files: Collection[ListedFile]) -> dict[str, str]:
    """Return the properties of a partition after the relocation ``token``: the token, and the counts of its ``files``.

    ``parameters`` are the properties before the relocation. Tokens of earlier relocations are dropped, and so are
    counts that may no longer be right.
    """
    kept = {name: value for name, value in parameters.items() if name not in _STALE_STATISTICS | _TOKEN_KEYS}
    return {
        **kept,
        **token_parameters(token),
        "numFiles": str(len(files)),
        "totalSize": str(sum(file.bytes for file in files)),
    }


def output_file_name(version: str, group: int, number: int, suffix: str) -> str:
    """Return the name of a file that a rewrite writes; no writer's file has that name."""
    return f"part-{version}-{group}-{number}.{suffix}"


def version_of_output(file_name: str) -> str | None:
    """Return the version whose rewrite wrote the file of this name. None if a writer wrote the file."""
    found = _OUTPUT_FILE.fullmatch(file_name)
    return found["version"] if found else None


def plan_id_of(version: str) -> str:
    """Return the id of the plan that made a version."""
    return version.rsplit("-", 2)[0]


def epoch_of(version: str) -> int | None:
    """Return the epoch of the attempt that made a version. None if ``version`` is not the name of a version."""
    found = _VERSION_NAME.fullmatch(version)
    return int(found["epoch"]) if found else None


def version_started_ns(token: str) -> int | None:
    """Return when a version was begun, in nanoseconds since 1970. None if no plan made the relocation ``token``."""
    return int(token.rpartition("-")[2]) if _VERSION_NAME.fullmatch(token) else None


def is_version_name(name: str) -> bool:
    """True if a directory has the name of a version."""
    return _VERSION_NAME.fullmatch(name) is not None


def relocation_token(parameters: Mapping[str, str]) -> str | None:
    """Return the relocation that a partition names as its last. None if it names none."""
    return parameters.get(RELOCATION_KEY) or parameters.get(VERSION_KEY)
