# SPDX-License-Identifier: Apache-2.0
"""Bloom filters of record keys are Hudi's, bit for bit."""

from typing import Any

import pyarrow as pa
import pytest

from lake.formats.hudi.files.bloom_filter import DYNAMIC, BloomFilter, BloomFilterSettings
from lake.formats.hudi.jvm.class_cache import cached_jvm

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SMALL = {"entries": 100, "false_positive_rate": 0.01}
KEYS = [f"key-{number * 7919:08d}" for number in range(950)]
ODD_KEYS = [
    *("a", "ab", "abc", "abcd", "abcde"),
    *("äöü", "日本語のキー", "🙂", "\x80\xff", "\x00", " "),
    "x" * 1000,
    *(f"user:{number},at:{number % 13}" for number in range(300)),
]


def of_hudi(spark: Any, settings: BloomFilterSettings, keys: list[str]) -> str:
    jvm: Any = cached_jvm(spark)
    bloom = jvm.org.apache.hudi.common.bloom
    made = bloom.BloomFilterFactory.createBloomFilter(
        settings.entries, settings.false_positive_rate, settings.max_entries, settings.type
    )
    for key in keys:
        made.add(key)
    return str(made.serializeToString())


def ours(settings: BloomFilterSettings, keys: list[str], cut: int) -> str:
    """The filter of keys that come in batches of ``cut``, each a part of a larger array."""
    made = BloomFilter(settings)
    column = pa.array(["not a part", *keys], pa.string())
    for at in range(1, len(keys) + 1, cut):
        made.add(column.slice(at, cut))
    return made.serialize()


@pytest.mark.parametrize("cut", [1, 64, 10_000])
@pytest.mark.parametrize(
    "keys", [KEYS, ODD_KEYS, KEYS[:100], KEYS[:101], []], ids=["many", "odd", "100", "101", "none"]
)
@pytest.mark.parametrize(
    "settings",
    [
        BloomFilterSettings(**SMALL, max_entries=100, type="SIMPLE"),
        BloomFilterSettings(**SMALL, max_entries=300, type=DYNAMIC),
        BloomFilterSettings(**SMALL, max_entries=250, type=DYNAMIC),
        BloomFilterSettings(**SMALL, max_entries=50, type=DYNAMIC),
        BloomFilterSettings(entries=60_000, false_positive_rate=1e-9, max_entries=100_000, type=DYNAMIC),
        BloomFilterSettings(entries=7, false_positive_rate=0.5, max_entries=10_000, type=DYNAMIC),
    ],
    ids=lambda one: f"{one.type}-{one.entries}-{one.max_entries}",
)
def test_a_filter_is_that_of_hudis_writers(
    spark: Any, settings: BloomFilterSettings, keys: list[str], cut: int
) -> None:
    assert ours(settings, keys, cut) == of_hudi(spark, settings, keys)


@pytest.mark.parametrize(("key", "why"), [(None, "without a record key"), ("", "an empty record key")])
def test_a_row_without_a_key_is_refused(key: str | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        BloomFilter(BloomFilterSettings(**SMALL, max_entries=100, type="SIMPLE")).add(pa.array(["a", key], pa.string()))
