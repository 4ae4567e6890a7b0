# SPDX-License-Identifier: Apache-2.0
"""The rows of the demo: realistic taxi trips from a seed, which the writer sends and the ledger records.

The rows are made with numpy and pyarrow and without Spark, so that the ledger is independent of the code it checks.
"""

from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

CITIES = ("bergen", "lisbon", "osaka")
FIRST_DAY = date(2026, 1, 5)
POINT = pa.struct([pa.field("lat", pa.float64()), pa.field("lon", pa.float64())])
TRIPS = pa.schema(
    [
        pa.field("trip_id", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("city", pa.string()),
        pa.field("day", pa.string()),
        pa.field("picked_up_at", pa.timestamp("us", tz="UTC")),
        pa.field("dropped_off_at", pa.timestamp("us", tz="UTC")),
        pa.field("fare", pa.decimal128(10, 2)),
        pa.field("tip", pa.decimal128(10, 2)),
        pa.field("passengers", pa.int32()),
        pa.field("distance_km", pa.float64()),
        pa.field(
            "route",
            pa.struct([pa.field("start", POINT), pa.field("finish", POINT), pa.field("toll", pa.decimal128(6, 2))]),
        ),
        pa.field("note", pa.string()),
    ]
)
"""The schema of one trip per row: ``trip_id`` is the record key, ``city`` and ``day`` are the partition.

Of two rows with one key the higher ``version`` wins. A trip under way has no ``dropped_off_at`` and its ``route`` has
no ``finish``. ``tip`` and ``note`` are often null.
"""

_NOTES = pa.array(["airport", "card declined, paid cash", "left an umbrella", "rated ★★★★★", "", None, None, None])


def new_trips(random: np.random.Generator, first: int, count: int, days: int, *, newest_day_only: bool) -> pa.Table:
    """Return ``count`` new trips, numbered from ``first``, over ``days`` days or only on the newest day."""
    numbers = np.arange(first, first + count)
    city = random.integers(0, len(CITIES), count)
    day = np.full(count, days - 1) if newest_day_only else random.integers(0, days, count)
    day_names = [(FIRST_DAY + timedelta(days=n)).isoformat() for n in range(days)]
    midnight = np.datetime64(FIRST_DAY, "us") + day.astype("timedelta64[D]")
    picked_up = midnight + random.integers(0, 86_400_000_000, count).astype("timedelta64[us]")
    table = pa.table(
        {
            "trip_id": pa.array([f"{CITIES[c][:3]}-{n:09d}" for c, n in zip(city, numbers, strict=True)]),
            "version": pa.array(np.zeros(count, dtype=np.int64)),
            "city": pa.array([CITIES[c] for c in city]),
            "day": pa.array([day_names[d] for d in day]),
            "picked_up_at": pa.array(picked_up).cast(TRIPS.field("picked_up_at").type),
        }
    )
    return _drive(table, random)


def next_versions(trips: pa.Table, random: np.random.Generator) -> pa.Table:
    """Return the next version of the trips: under way or arrived, with new fares, tips, routes and notes."""
    kept = trips.select(["trip_id", "version", "city", "day", "picked_up_at"])
    kept = kept.set_column(1, "version", pc.add(kept["version"], 1))
    return _drive(kept, random)


def _drive(started: pa.Table, random: np.random.Generator) -> pa.Table:
    """Fill in every column that changes between versions of a trip."""
    count = started.num_rows
    under_way = random.random(count) < 0.1
    minutes = random.integers(3, 90, count)
    arrived = started["picked_up_at"].to_numpy() + minutes.astype("timedelta64[m]")

    def point() -> pa.Array:
        lat, lon = random.uniform(-60, 60, count), random.uniform(-180, 180, count)
        return pa.StructArray.from_arrays([pa.array(lat), pa.array(lon)], fields=list(POINT))

    toll = _money(random, count, 2_000, random.random(count) < 0.7, TRIPS.field("route").type.field("toll").type)
    finish = point()
    finish = pc.if_else(pa.array(under_way), pa.scalar(None, POINT), finish)
    route = pa.StructArray.from_arrays([point(), finish, toll], fields=list(TRIPS.field("route").type))
    changing = {
        "dropped_off_at": pa.array(arrived, mask=under_way).cast(TRIPS.field("dropped_off_at").type),
        "fare": _money(random, count, 12_000, np.zeros(count, dtype=bool), TRIPS.field("fare").type),
        "tip": _money(random, count, 2_500, random.random(count) < 0.4, TRIPS.field("tip").type),
        "passengers": pa.array(random.integers(1, 6, count), mask=random.random(count) < 0.05).cast(pa.int32()),
        "distance_km": pa.array(np.round(random.gamma(2.0, 4.0, count), 3)),
        "route": route,
        "note": _NOTES.take(pa.array(random.integers(0, len(_NOTES), count))),
    }
    columns = {name: started[name] for name in started.column_names} | changing
    return pa.table([columns[field.name] for field in TRIPS], schema=TRIPS)


def _money(random: np.random.Generator, count: int, most_cents: int, null: np.ndarray, type_: pa.DataType) -> pa.Array:
    cents = pa.array(random.integers(0, most_cents, count), mask=null).cast(pa.decimal128(19, 0))
    return pc.multiply(cents, pa.scalar("0.01").cast(pa.decimal128(3, 2))).cast(type_)
