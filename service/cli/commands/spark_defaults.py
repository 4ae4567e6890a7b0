# SPDX-License-Identifier: Apache-2.0
"""The settings of one catalog in Spark's own configuration file, ``spark-defaults.conf``."""

import re
from pathlib import Path

from service.problems import NOT_FOUND, USAGE, ProblemError

_PREFIX = "spark.sql.catalog."
#: further settings that a catalog may need
_SHARED = ("spark.jars.packages", "spark.jars.repositories", "spark.jars", "spark.hadoop.hive.metastore.uris")
_LINE = re.compile(r"\s*(?P<key>[^\s=:#!][^\s=:]*)(?:\s*[=:]\s*|\s+|$)(?P<value>.*?)\s*")


def catalog_settings(file: Path, catalog: str) -> dict[str, str]:
    """Return the settings of ``catalog`` in ``file``, with the session's packages and metastore.

    Raises ProblemError if the file can't be read or does not define the catalog.
    """
    try:
        text = file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ProblemError(NOT_FOUND, f"{file} can't be read: {why}", path=str(file)) from error
    found = {match["key"]: match["value"] for line in text.splitlines() if (match := _LINE.fullmatch(line))}
    key = _PREFIX + catalog
    if key not in found:
        others = sorted(one.removeprefix(_PREFIX) for one in found if one.startswith(_PREFIX) and one.count(".") == 3)
        defined = f"it defines {', '.join(others)}" if others else "it defines no catalog"
        raise ProblemError(USAGE, f"{file} has no {key}; {defined}", path=str(file))
    return {
        name: value for name, value in found.items() if name == key or name.startswith(f"{key}.") or name in _SHARED
    }
