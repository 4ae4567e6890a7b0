# SPDX-License-Identifier: Apache-2.0
"""What formats learn of the configuration, and which of them a Spark session is started for."""

from collections.abc import Iterator, Mapping

import pytest
from daemon_toys import known
from toys.bench import bench_at
from toys.timeline import ToyFormat
from toys.timeline_tables import create

import lake.formats
from lake.errors import Rejected
from lake.model import TableRef
from service.control.wiring import open_config, session_formats

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


def test_a_format_gets_sparks_settings_with_each_configuration(behind, tmp_path):
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


def test_a_format_loaded_after_the_configuration_gets_its_settings_when_it_is_loaded(tmp_path):
    (tmp_path / "lakefold.toml").write_text('[spark]\n"spark.sql.catalog.lake.uri" = "https://one"\n')
    open_config()
    with known(BehindCatalog()) as late:
        assert lake.formats.load_format("toy") is late
        assert late.settings == {"spark.sql.catalog.lake.uri": "https://one"}
    lake.formats.configure({})


def test_a_session_is_started_for_the_formats_that_sources_name_and_those_of_tables_to_be_rewritten(tmp_path):
    def formats(*sources: str, at_work: tuple[str, ...] = ()) -> list[str]:
        (tmp_path / "lakefold.toml").write_text("".join(f"[[sources]]\n{source}\n" for source in sources))
        return session_formats(open_config(), at_work)

    anything = 'path = "/lake"'
    assert formats(anything) == [], "as long as nothing was found"
    assert formats(anything, at_work=("hudi",)) == ["hudi"]
    assert formats(anything, 'path = "/more"\nformat = "hudi"') == ["hudi"]
    assert formats('metastore = "thrift://one:9083"', at_work=("hive",)) == ["hive"]
    catalog = '"spark.sql.catalog.prod" = "org.apache.iceberg.spark.SparkCatalog"'
    assert formats(f'catalog = "prod"\n[spark]\n{catalog}') == [], "Iceberg lists its catalogs without a session"
    assert formats('database = "sales"') == list(lake.formats.FORMATS), "a session is what finds them"


def test_a_format_is_at_work_where_a_table_is_planned_or_has_a_plan_or_files_to_delete(tmp_path):
    with bench_at(tmp_path) as bench:
        of_plan = bench.table.format
        for name, format_, mode in (("a", "seen", "observe"), ("b", "served", "propose"), ("c", "left", "off")):
            bench.store.register_table(TableRef(name=name, format=format_, location=f"/{name}"), mode)
        bench.store.register_table(bench.table, "observe")
        assert (bench.store.formats_in_use(), bench.store.formats_of_live_plans()) == ({"served"}, frozenset())
        bench.request()
        assert (bench.store.formats_in_use(), bench.store.formats_of_live_plans()) == ({"served", of_plan}, {of_plan})
        bench.store.register_table(bench.table, "compact")
        bench.run()
        bench.store.register_table(bench.table, "observe")
        assert (bench.store.formats_in_use(), bench.store.formats_of_live_plans()) == ({"served", of_plan}, frozenset())
        bench.clean()
        assert bench.store.formats_in_use() == {"served"}
