# SPDX-License-Identifier: Apache-2.0
"""The shapes of simulated tables: each is a table, its format, and its own writers."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from simulation.port import ModelFormat
from simulation.shapes.locations.port import LocationsFormat
from simulation.shapes.locations.table import LocationsTable
from simulation.shapes.locations.writes import LocationsWrites
from simulation.shapes.timeline.port import TimelineFormat
from simulation.shapes.timeline.table import TimelineTable
from simulation.shapes.timeline.writes import TimelineWrites
from simulation.shapes.versions.port import VersionsFormat
from simulation.shapes.versions.table import VersionsTable
from simulation.shapes.versions.writes import VersionsWrites
from simulation.table import Table
from simulation.writers import Writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One shape."""

    table: type[Table]
    format: type[ModelFormat]
    writes: type[Writes]


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        TimelineTable.shape: Shape(table=TimelineTable, format=TimelineFormat, writes=TimelineWrites),
        LocationsTable.shape: Shape(table=LocationsTable, format=LocationsFormat, writes=LocationsWrites),
        VersionsTable.shape: Shape(table=VersionsTable, format=VersionsFormat, writes=VersionsWrites),
    }
)
"""By the names that ``TableSetup.shape`` and ``TableRef.format`` have for them."""
