# SPDX-License-Identifier: Apache-2.0
"""The metrics page as bytes, rendered when the figures are refreshed: a scrape costs no more than sending them.

The lines of tables are kept in blocks of tables, and only blocks with changed values are rendered again. The rendering
thread pauses longer than it works, so that requests are answered first.
"""

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from service.server.observability.metric_specs import MetricSpec
from service.server.observability.table_series import SampleColumn, TableKey, TableSeries

#: tables in one block of lines
_BLOCK = 500
#: pause per line, three times the longest rendering time of a line; the pauses of a column follow it as one pause
_PAUSE_SECONDS = 1e-6
#: zlib's window bits for a gzip stream
_GZIP = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class _Block:
    """The lines of some tables in one column, and the values from which they were rendered."""

    label_prefixes: Sequence[str]
    values: Sequence[float]
    text: bytes


class MetricsPage:
    """The text of all metrics as of the last ``render``."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, process_registry: CollectorRegistry, table_series: Sequence[TableSeries]) -> None:
        self._process_registry, self._table_series = process_registry, table_series
        self._label_prefixes = _LabelPrefixes()
        #: key: the sample's name, the labels besides the table, and the number of the block
        self._blocks: dict[tuple[str, tuple[str, ...], int], _Block] = {}
        self._bodies: tuple[Sequence[bytes], Sequence[bytes]] = (), ()
        self.render()

    def render(self) -> None:
        """Render the current values."""
        before, self._blocks = self._blocks, {}
        parts = [generate_latest(self._process_registry)]
        for series in self._table_series:
            for spec, columns in series.families():
                for header, chosen in _group_by_header(spec, columns):
                    parts.append(header)
                    for column in chosen:
                        parts += self._format_blocks(column, before)
                        time.sleep(len(column.values) * _PAUSE_SECONDS)
        squeeze = zlib.compressobj(1, wbits=_GZIP)
        gzipped = [squeeze.compress(part) for part in parts]
        self._bodies = parts, [part for part in (*gzipped, squeeze.flush()) if part]

    def body_parts(self, *, gzipped: bool) -> Sequence[bytes]:
        """Return the text in parts, gzipped or not."""
        return self._bodies[gzipped]

    def _format_blocks(
        self, column: SampleColumn, before: "Mapping[tuple[str, tuple[str, ...], int], _Block]"
    ) -> Iterator[bytes]:
        """Yield the lines of a column, block by block."""
        ends = tuple(
            "".join(f",{_format_label(name, value)}" for name, value in more.items()) for more in column.extra_labels
        )
        for number, begin in enumerate(range(0, len(column.tables), _BLOCK)):
            heads = [self._label_prefixes[table] for table in column.tables[begin : begin + _BLOCK]]
            values = column.values[begin * len(ends) : (begin + _BLOCK) * len(ends)]
            key = column.sample, ends, number
            block = before.get(key)
            if block is None or block.label_prefixes != heads or block.values != values:
                block = _Block(heads, values, _format_block(column.sample, heads, ends, values))
            self._blocks[key] = block
            yield block.text


class _LabelPrefixes(dict[TableKey, str]):
    """A cache of each table's labels as text; no entry is removed, because the database keeps its tables, too."""

    def __missing__(self, table: TableKey) -> str:
        name, format_ = table
        head = self[table] = f"{_format_label('table', name)},{_format_label('format', format_)}"
        return head


def _format_label(name: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{name}="{escaped}"'


def _format_block(sample: str, heads: Sequence[str], ends: Sequence[str], values: Sequence[float]) -> bytes:
    lines = zip(product(heads, ends), values, strict=True)
    return "".join([f"{sample}{{{head}{end}}} {value}\n" for (head, end), value in lines]).encode()


def _group_by_header(
    spec: MetricSpec, columns: Sequence[SampleColumn]
) -> Iterator[tuple[bytes, Sequence[SampleColumn]]]:
    """Yield each header with its columns; sum and count of a distribution are metrics of their own in this format."""
    names = {spec.name: "histogram" if spec.type == "gaugehistogram" else spec.type}
    names |= {f"{spec.name}{end}": "gauge" for end in ("_gcount", "_gsum") if spec.type == "gaugehistogram"}
    meaning = spec.meaning.replace("\\", r"\\").replace("\n", r"\n")
    for name, type_ in names.items():
        chosen = [column for column in columns if column.sample.removesuffix("_bucket") == name]
        if chosen or name == spec.name:
            yield f"# HELP {name} {meaning}\n# TYPE {name} {type_}\n".encode(), chosen
