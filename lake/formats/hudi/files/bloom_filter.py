# SPDX-License-Identifier: Apache-2.0
"""The Bloom filter of record keys in a base file's footer, bit for bit as Hudi's writers make it.

The filter takes arrays of keys.

Sources: Hudi's ``InternalBloomFilter``, ``InternalDynamicBloomFilter``, ``HashFunction`` and ``MurmurHash``
(org.apache.hudi.common.bloom, org.apache.hudi.common.util.hash), and ``BloomFilterUtils`` for the two formulas.
"""

import base64
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bits = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

SIMPLE, DYNAMIC = "SIMPLE", "DYNAMIC_V0"
BLOOM_FILTER_TYPES = (SIMPLE, DYNAMIC)
"""The types of filters, as ``BloomFilterTypeCode`` names them."""

_SERIAL_VERSION, _MURMUR_HASH = -1, 1
_MULTIPLIER, _WORD_SHIFT = np.uint32(0x5BD1E995), np.uint32(24)
_FIRST_SHIFT, _LAST_SHIFT = np.uint32(13), np.uint32(15)
#: keys that are hashed together: their intermediate values fit into the processor's cache
_KEYS_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class BloomFilterSettings:
    """The settings of a filter, as the table's write configuration has them.

    ``entries`` is the number of keys of one filter, ``false_positive_rate`` (above 0, below 1) the rate of false
    positives of a filter with this number of keys. ``max_entries`` bounds a filter of type ``DYNAMIC_V0``, which grows
    by one filter for every ``entries`` keys. The other type is ``SIMPLE``.
    """

    entries: int
    false_positive_rate: float
    max_entries: int
    type: str

    @property
    def bits(self) -> int:
        """The size of one filter: n · −ln p / ln² 2, rounded up."""
        return math.ceil(self.entries * (-math.log(self.false_positive_rate) / (math.log(2) * math.log(2))))

    @property
    def hashes(self) -> int:
        """The number of hash functions: ln 2 · bits / n, rounded up."""
        return math.ceil(math.log(2) * self.bits / self.entries)

    @property
    def max_filters(self) -> int:
        """The maximum number of filters in a ``DYNAMIC_V0`` filter."""
        return max(1, -(-self.max_entries // self.entries)) if self.type == DYNAMIC else 1


class BloomFilter:
    """A filter to which record keys are added in the order of the rows."""

    def __init__(self, settings: BloomFilterSettings) -> None:
        self.settings = settings
        self._filters: list[Bits] = [self._new_filter()]
        self._keys = 0

    def add(self, keys: pa.StringArray) -> None:
        """Add record keys. Raises ValueError for a null and for an empty key, which Hudi does not accept either."""
        if keys.null_count:
            raise ValueError("a row without a record key")
        offsets, content = _offsets_and_bytes(keys)
        lengths = np.diff(offsets)
        if len(lengths) and not lengths.min():
            raise ValueError("an empty record key")
        for number, rows in self._filter_of_keys(len(keys)):
            while len(self._filters) <= number:
                self._filters.append(self._new_filter())
            self._set_bits(self._filters[number], content, offsets[:-1][rows], lengths[rows])
        self._keys += len(keys)

    def serialize(self) -> str:
        """Return the filter as ``serializeToString`` of Hudi's filters does: in Base64."""
        settings = self.settings
        head = struct.pack(">iibi", _SERIAL_VERSION, settings.hashes, _MURMUR_HASH, settings.bits)
        parts = []
        if settings.type == DYNAMIC:
            in_last = self._keys - (len(self._filters) - 1) * settings.entries
            parts.append(head + struct.pack(">iii", settings.entries, in_last, len(self._filters)))
        for bits in self._filters:
            parts += [head, np.packbits(bits, bitorder="little").tobytes()]
        return base64.b64encode(b"".join(parts)).decode()

    def _new_filter(self) -> Bits:
        return np.zeros(self.settings.bits, dtype=np.bool_)

    def _filter_of_keys(self, count: int) -> Iterator[tuple[int, Positions | slice]]:
        """Yield filters, and which of the next ``count`` keys belong to each.

        A filter is filled before the next one begins. Once the last one is full, keys go to all filters in turn, except
        that the first two of these keys both go to the first filter.
        """
        settings = self.settings
        if settings.type != DYNAMIC:
            yield 0, slice(0, count)
            return
        first, behind = self._keys, self._keys + count
        capacity = settings.max_filters * settings.entries
        for number in range(first // settings.entries, min(settings.max_filters, -(-behind // settings.entries))):
            low, high = max(first, number * settings.entries), min(behind, (number + 1) * settings.entries)
            yield number, slice(low - first, high - first)
        if behind > capacity:
            surplus = np.arange(max(first, capacity), behind, dtype=np.int64)
            turns = np.maximum(surplus - capacity - 1, 0) % settings.max_filters
            for number in np.unique(turns).tolist():
                yield number, surplus[turns == number] - first

    def _set_bits(self, bits: Bits, content: Bytes, starts: Positions, lengths: Positions) -> None:
        """Set the bits of keys, which are at ``starts`` in ``content``; keys of one length are hashed together."""
        for length in np.unique(lengths).tolist():
            of_length = starts[lengths == length]
            for at in range(0, len(of_length), _KEYS_AT_ONCE):
                some = of_length[at : at + _KEYS_AT_ONCE]
                keys = content[some[:, None] + np.arange(length)]
                for position in _positions(keys, self.settings.hashes, len(bits)):
                    bits[position] = True


def _offsets_and_bytes(keys: pa.StringArray) -> tuple[Positions, Bytes]:
    """Return the offsets of strings in their bytes, the end of the last string included, and the bytes."""
    kind = np.int64 if pa.types.is_large_string(keys.type) else np.int32
    _, offsets, content = keys.buffers()
    of_keys = np.frombuffer(offsets, kind)[keys.offset : keys.offset + len(keys) + 1] if offsets else np.zeros(1)
    return of_keys.astype(np.int64), np.frombuffer(content or b"", np.uint8)


def _positions(keys: Bytes, hashes: int, bits: int) -> Iterator[Words]:
    """Yield the positions that each hash function gives to keys of one length; ``keys`` has a row for each key.

    Each function is MurmurHash with the value of the previous function as its seed. The bytes behind the last whole
    word are signed, and the last of them is the low-order byte.
    """
    count, length = keys.shape
    whole = length // 4
    # The mixing of a word does not depend on the seed, so each word is mixed once for all functions.
    words = [_mixed(keys[:, 4 * number : 4 * number + 4]) for number in range(whole)]
    tail: Words | None = None
    if length % 4:
        signed = keys[:, 4 * whole :].astype(np.int8).astype(np.int32)
        last = signed.shape[1] - 1
        combined = np.zeros(count, dtype=np.int32)
        for number in range(last + 1):
            combined ^= signed[:, last - number] << np.int32(8 * number)
        tail = combined.view(np.uint32)
    value = np.zeros(count, dtype=np.uint32)
    for _ in range(hashes):
        value = value ^ np.uint32(length)
        for word in words:
            value = value * _MULTIPLIER ^ word
        if tail is not None:
            value = (value ^ tail) * _MULTIPLIER
        value = (value ^ value >> _FIRST_SHIFT) * _MULTIPLIER
        value = value ^ value >> _LAST_SHIFT
        # Java's Math.abs(value % bits): the remainder has the sign of the value.
        yield np.abs(value.view(np.int32)).view(np.uint32) % np.uint32(bits)


def _mixed(word_bytes: Bytes) -> Words:
    """Return little-endian words of four bytes each as MurmurHash mixes them, before the seed is applied."""
    words = np.ascontiguousarray(word_bytes).view("<u4")[:, 0] * _MULTIPLIER
    mixed: Words = (words ^ words >> _WORD_SHIFT) * _MULTIPLIER
    return mixed
