# SPDX-License-Identifier: Apache-2.0
"""The metrics page: what is rendered piece by piece, and only where something changed, is what a registry collects."""

import gzip
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lake.model import TableRef
from lake.plan import PlanKind, PlanState
from service.control.lake_cache import LakeState
from service.control.store import Figures, Pause, PlanFigures, ScanRecord, SupersededFigures, TableState
from service.control.store.views import ProposalFigures
from service.server.observability import metrics_page
from service.server.observability.metrics import Metrics
from service.server.observability.metrics_page import MetricsPage
from service.server.observability.stored_metrics import StoredTables

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ODD = ('sales."quoted"', "sales.back\\slash", "sales.two\nlines", "größe.ö")
NAMES = (*ODD, *(f"db{n % 3}.t{n}" for n in range(20)))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(metrics_page, "_BLOCK", 4)


class Changing:
    """A lake of which some tables change, come and go at each step."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.tables, self.last, self.good, self.plans, self.superseded = {}, {}, {}, {}, {}

    def step(self):
        for name in self.chance.sample(NAMES, self.chance.randint(0, 5)):
            self._change(name)
        return LakeState(
            figures=Figures(
                taken_at=NOON,
                plans=tuple(self.plans.values()),
                superseded=tuple(self.superseded.values()),
                tables=tuple(self.tables[name] for name in sorted(self.tables)),
                pause=None,
            ),
            last_scans=dict(self.last),
            last_good_scans=dict(self.good),
            first_scans={},
            recent_plans=(),
            leaders=(),
            failed_plans={},
            processes=(),
            running_plans=(),
            contested={},
            trend_points=(),
        )

    def _change(self, name):
        chance, format_ = self.chance, "hudi" if len(name) % 2 else "hive"
        if name in self.tables and chance.random() < 0.1:
            for known in (self.tables, self.last, self.good, self.superseded):
                known.pop(name, None)
            self.plans = {key: figures for key, figures in self.plans.items() if key[0] != name}
            return
        self.tables[name] = TableState(
            ref=TableRef(name=name, format=format_, location="/lake"),
            mode=chance.choice(("observe", "compact", "off")),
            pause=Pause(by="ada", at=NOON, reason="") if chance.random() < 0.3 else None,
            halted_reason=None,
            halted_at=NOON if chance.random() < 0.3 else None,
            quarantined={},
        )
        if chance.random() < 0.8:
            ok, told = chance.random() < 0.7, chance.random() < 0.7
            self.last[name] = scan = ScanRecord(
                table=name,
                taken_at=NOON + timedelta(seconds=chance.random()),
                files=chance.randint(0, 9),
                bytes=chance.randint(0, 1 << 52),
                small_files=9,
                histogram=tuple(chance.choices(range(5), k=26)) * ok,
                reducible_files=chance.randint(0, 9) if told else None,
                reducible_bytes=7 if told else None,
                skipped={"damaged": chance.randint(0, 2)},
                not_planned=chance.choice((None, "unsaid")),
                outcome="ok" if ok else "error",
            )
            if ok:
                self.good[name] = scan
        for kind in PlanKind:
            for state in PlanState:
                if chance.random() < 0.3:
                    self.plans[name, kind, state] = PlanFigures(
                        table=name,
                        format=format_,
                        kind=kind,
                        state=state,
                        plans=chance.randint(1, 9),
                        input_files=1,
                        input_bytes=chance.randint(1, 99),
                        files_before=1,
                        bytes_before=1,
                        files_after=1,
                        bytes_after=1,
                        oldest_created_at=NOON,
                    )
        if chance.random() < 0.5:
            self.superseded[name] = SupersededFigures(table=name, format=format_, files=chance.randint(0, 9), bytes=8)


def samples(text):
    """{(name, labels): value} of a page, of which the figures of the process itself go on changing; no sample twice."""
    found = [
        ((sample.name, frozenset(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.startswith("process_")
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


def shown(page):
    text = b"".join(page.body_parts(gzipped=False))
    assert gzip.decompress(b"".join(page.body_parts(gzipped=True))) == text
    return text.decode()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_a_page_rendered_change_by_change_equals_one_rendered_at_once_and_the_registrys_samples(seed):
    metrics, changing = Metrics("all"), Changing(seed)
    page = MetricsPage(metrics.process_registry, metrics.table_series)
    for _ in range(5):
        lake = changing.step()
        compacted = [table for table in lake.figures.tables if table.mode == "compact"]
        metrics.start_table_counters({table.name: table.format for table in compacted})
        for table in compacted[: changing.chance.randint(0, 2)]:
            metrics.files_deleted(table, 1, changing.chance.randint(1, 99))
        metrics.stored.publish(lake)
        page.render()
        incremental = samples(shown(page))
        assert incremental == samples(shown(MetricsPage(metrics.process_registry, metrics.table_series)))
        assert incremental == samples(generate_latest(metrics.registry).decode())


def headers(text):
    return [line for line in text.splitlines() if line.startswith("#") and " process_" not in line]


def test_each_metric_has_one_header_with_its_samples_below_it():
    metrics, changing = Metrics("all"), Changing(1)
    metrics.start_table_counters({"db0.t1": "hudi"})
    for _ in range(20):
        metrics.stored.publish(changing.step())
    text = shown(MetricsPage(metrics.process_registry, metrics.table_series))
    assert sorted(headers(text)) == sorted(headers(generate_latest(metrics.registry).decode()))
    group = ""
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            group = line.split()[2]
        elif not line.startswith("#"):
            assert line.startswith(group)


def test_only_blocks_with_a_change_are_rendered_again(monkeypatch):
    metrics, changing = Metrics("all"), Changing(3)
    for _ in range(30):
        lake = changing.step()
    metrics.stored.publish(lake)
    page, rendered = MetricsPage(metrics.process_registry, metrics.table_series), []
    real = metrics_page._format_block
    monkeypatch.setattr(
        metrics_page, "_format_block", lambda sample, *rest: rendered.append(sample) or real(sample, *rest)
    )
    page.render()
    assert rendered == []
    metrics.files_deleted(lake.figures.tables[0], 2, 20)
    page.render()
    assert set(rendered) == {"lakefold_cleaner_deleted_files_total", "lakefold_cleaner_deleted_bytes_total"}
    assert len(rendered) == 2


class Counted(tuple):
    """Counts how often it was iterated."""

    looks = 0

    def __iter__(self):
        self.looks += 1
        return super().__iter__()


def test_tables_are_iterated_as_often_with_any_number_of_proposals():
    lake, looks = Changing(0).step(), []
    tables = [
        TableState(
            ref=TableRef(name=f"t{n}", format="hudi", location="/lake"),
            mode="propose",
            pause=None,
            halted_reason=None,
            halted_at=None,
            quarantined={},
        )
        for n in range(9)
    ]
    for many in (0, 9):
        counted = Counted(tables)
        waiting = tuple(
            ProposalFigures(table=f"t{n}", kind=PlanKind.CLUSTERING, plans=n, input_bytes=1, oldest_at=NOON)
            for n in range(many)
        )
        figures = replace(lake.figures, tables=counted, proposals=waiting, plans=(), superseded=())
        stored = StoredTables([])
        stored.lake_state = replace(lake, figures=figures, last_scans={}, last_good_scans={})
        families = {spec.name: columns for spec, columns in stored.families()}
        looks.append(counted.looks)
    assert families["lakefold_plan_proposals"][0].values == list(range(9))
    assert looks[0] == looks[1]
