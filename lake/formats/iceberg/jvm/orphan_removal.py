# SPDX-License-Identifier: Apache-2.0
"""Deletes orphan files by Iceberg's own action, which reads the table once more and keeps every file that it lists."""

import os
from collections.abc import Sequence
from datetime import timedelta

from lake.capabilities import OrphanFile
from lake.errors import Rejected
from lake.formats.iceberg.jvm.errors import VALIDATION, java_causes, translated
from lake.formats.iceberg.jvm.java_table import JavaTable

_COLUMNS = "file_path string, last_modified timestamp"


def remove(table: JavaTable, files: Sequence[OrphanFile]) -> list[OrphanFile]:
    """Let Iceberg delete those of ``files`` that it finds to be orphan files too. Returns the deleted ones."""
    # All names have a scheme: Iceberg compares it with that of the names in the metadata, if they have one.
    rows = [(f"file:{one.path}", one.modified_at) for one in files]
    # The search has compared their ages with the storage's clock.
    before = max(one.modified_at for one in files) + timedelta(seconds=1)
    try:
        listing = table.spark.createDataFrame(rows, _COLUMNS)
        action = table.iceberg.spark.actions.SparkActions.get(table.spark._jsparkSession).deleteOrphanFiles(table.table)
        # The table's location may be spelled in another way.
        action = action.location("file:").olderThan(int(before.timestamp() * 1000)).compareToFileList(listing._jdf)
        action.execute()
    except Exception as error:
        causes = java_causes(error)
        if causes and causes[0][0] == VALIDATION:
            # Iceberg can't compare the files by their schemes, or the owner has forbidden deletions meanwhile.
            raise Rejected(
                f"{table.name}: Iceberg deletes no orphan files ({causes[0][1].splitlines()[0][:500]})"
            ) from error
        raise translated(error, table.name, "deleting orphan files") from error
    return [one for one in files if not os.path.lexists(one.path)]
