# SPDX-License-Identifier: Apache-2.0
"""Metadata that writers carry from commit to commit (``hoodie.write.rolling.metadata.keys``)."""

import pytest
from hudi_tables import rows, write
from hudi_writing import NewTable, Table

from lake.formats.hudi.timeline.timeline import extra_metadata

pytestmark = pytest.mark.spark
KEY, ROLLING = "our.offset", "hoodie.write.rolling.metadata.keys"


def newest(trips: Table) -> str | None:
    """The value of the key in the newest commit."""
    timeline = trips.timeline()
    return extra_metadata(timeline.metadata(timeline.commits[-1])).get(KEY)


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_lakefolds_commits_carry_the_keys_that_the_write_options_name_and_no_others(table: NewTable, kind: str) -> None:
    trips = table(kind)
    given = {"hoodie.datasource.write.commitmeta.key.prefix": "our.", KEY: "7"}
    write(rows(trips.spark, 500, 510), trips.base, "insert", merge_on_read=kind == "mor", options=given)
    assert newest(trips) == "7"
    plan = trips.compaction() if kind == "mor" else trips.plan()
    trips.run(plan)
    assert newest(trips) is None
    trips.options[ROLLING] = KEY
    trips.run(trips.plan("0198-rolling"))
    assert newest(trips) == "7"
