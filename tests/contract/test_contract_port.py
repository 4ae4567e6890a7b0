# SPDX-License-Identifier: Apache-2.0
"""The test formats fulfil the contract of the port."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from toys.cases import VARIANTS, VersionsCase
from toys.versions import VersionsFormat

from contract.case import Case
from contract.port import PortContract
from lake.model import TableRef


class TestPort(PortContract):
    """Every obligation of each test format."""

    @pytest.fixture(params=VARIANTS)
    def case(self, request: pytest.FixtureRequest) -> Case:
        return VARIANTS[request.param]()


class InBoth(VersionsFormat):
    """A format whose tables are in a metastore or outside of one."""

    def discover_in_metastore(self, uri: str, databases: str, tables: str) -> Iterator[TableRef]:
        raise AssertionError("the table is in none")


@dataclass(kw_only=True)
class ByPlace(VersionsCase):
    """A table without a metastore, of a format that finds other tables in one."""

    format: VersionsFormat = field(default_factory=InBoth)


def test_a_table_that_is_in_no_catalog_is_found_at_its_location(tmp_path: Path):
    case = ByPlace()
    table = case.create(tmp_path / "t", name="t")
    PortContract().test_a_snapshot_lists_the_files_of_readers_with_partition_size_and_time(case, table)
