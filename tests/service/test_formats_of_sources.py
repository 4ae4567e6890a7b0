# SPDX-License-Identifier: Apache-2.0
"""What formats learn of the configuration, and which of them a Spark session is started for."""

from collections.abc import Iterator, Mapping

import pytest
from daemon_toys import known
from toys.timeline import ToyFormat
from toys.timeline_tables import create

import lake.formats
from lake.errors import Rejected
from lake.model import TableRef
from service.wiring import open_config

pytestmark = pytest.mark.usefixtures("clean_environment")


class BehindCatalog(ToyFormat):
    """Toy tables which only open with the settings of a catalog."""

    def __init__(self) -> None:
        super().__init__()
        self.settings: Mapping[str, str] = {}

    def configure(self, settings: Mapping[str, str]) -> None:
        self.settings = settings

    def check(self, table: TableRef) -> None:
        if "spark.sql.catalog.lake.uri" not in self.settings:
            raise Rejected(f"{table.name}: set spark.sql.catalog.lake.uri in [spark]")


@pytest.fixture
def behind() -> Iterator[BehindCatalog]:
    with known(BehindCatalog()) as format_:
        yield format_
    lake.formats.configure({})


def test_a_format_is_told_sparks_settings_whenever_a_configuration_comes_into_force(behind, tmp_path):
    lake.formats.load_format("toy")
    file, table = tmp_path / "lakefold.toml", create(tmp_path / "t", name="t")
    with pytest.raises(Rejected, match=r"set spark\.sql\.catalog\.lake\.uri in \[spark\]"):
        behind.check(table)
    for uri in ("https://one", "https://two"):
        file.write_text(f'[spark]\nmaster = "yarn"\n"spark.sql.catalog.lake.uri" = "{uri}"\n')
        open_config()
        assert behind.settings == {"spark.master": "yarn", "spark.sql.catalog.lake.uri": uri}
        behind.check(table)
    file.write_text("")
    open_config()
    assert behind.settings == {}, "nothing is left of an earlier one"


def test_a_format_that_is_loaded_after_the_configuration_is_told_its_settings_then(tmp_path):
    (tmp_path / "lakefold.toml").write_text('[spark]\n"spark.sql.catalog.lake.uri" = "https://one"\n')
    open_config()
    with known(BehindCatalog()) as late:
        assert lake.formats.load_format("toy") is late
        assert late.settings == {"spark.sql.catalog.lake.uri": "https://one"}
    lake.formats.configure({})
