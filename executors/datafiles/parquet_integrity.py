# SPDX-License-Identifier: Apache-2.0
"""Checks the footer of a Parquet file for contradictions that end the process when pyarrow shows the footer.

pyarrow raises an exception for most damages. For some it throws a C++ exception where Python can't receive one: if the
type of a column chunk differs from the schema, if a codec is unknown, if a bound is shorter than a value, or if the
histogram of levels has another length than the schema requires.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from executors.datafiles.thrift import FoundValue, Part, Wanted, find_values, list_head_at, varint_at

_SCHEMA_ELEMENT: Wanted = {1: "type", 2: "length", 3: "repetition", 4: Part("name"), 5: "children"}
_STATISTICS: Wanted = dict.fromkeys((1, 2, 5, 6), Part("bound"))
_COLUMN_META: Wanted = {1: "type", 4: "codec", 12: _STATISTICS, 16: {2: Part("repetitions"), 3: Part("definitions")}}
_FOOTER: Wanted = {2: _SCHEMA_ELEMENT, 4: {1: {3: _COLUMN_META}}, 6: Part("writer")}
#: the bytes of a value by physical type; the length of FIXED_LEN_BYTE_ARRAY is in the schema, BYTE_ARRAY has none
_VALUE_BYTES = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, 6: 0}
_FIXED = 7
_REQUIRED, _OPTIONAL, _REPEATED = 0, 1, 2
_CODECS = range(8)


def verify_footer(footer: bytes, path: str) -> None:
    """Raise ``pa.ArrowInvalid`` if pyarrow can't show the ``footer`` of the file at ``path`` safely."""
    try:
        difference = _contradiction(footer)
    except (ValueError, IndexError) as error:
        raise pa.ArrowInvalid(f"{path}: the footer can't be read: {error}") from error
    if difference is not None:
        raise pa.ArrowInvalid(f"{path}: the footer contradicts itself: {difference}")


def _contradiction(footer: bytes) -> str | None:
    found, _ = find_values(footer, 0, _FOOTER)
    for value in found:
        if isinstance(value, tuple):
            _text(footer, value)  # the name of the writer
    lists = [value for value in found if isinstance(value, list)]
    if not lists or not lists[0]:
        return "it has no schema"
    leaves = list(_leaves(footer, lists[0]))
    for listed in lists[1:]:
        for group, _, _ in listed:
            chunks = next((value for value in group if isinstance(value, list)), [])
            if len(chunks) != len(leaves):
                return f"a row group has {len(chunks)} column chunks for {len(leaves)} columns"
            for leaf, (chunk, _, _) in zip(leaves, chunks, strict=True):
                if (difference := leaf.contradiction(footer, chunk)) is not None:
                    return difference
    return None


class _Leaf:
    """A leaf column of the schema."""

    def __init__(self, name: str, kind: int, length: int, definitions: int, repetitions: int) -> None:
        self._name, self._kind = name, kind
        self._bytes = length if kind == _FIXED else _VALUE_BYTES[kind]
        #: the lengths that histograms of levels can have; a histogram is missing if all levels are 0
        self._levels = {"definitions": (0, definitions + 1), "repetitions": (0, repetitions + 1)}

    def contradiction(self, footer: bytes, chunk: Sequence[FoundValue]) -> str | None:
        """Return the fault of a chunk of the column. None if it has none."""
        missing = {"type", "codec"}
        for name, start, _, value in chunk:
            missing.discard(name)
            if name == "type" and value != self._kind:
                return f"a chunk of column {self._name} has type {value}, the column has {self._kind}"
            if name == "codec" and value not in _CODECS:
                return f"a chunk of column {self._name} has the unknown codec {value}"
            if name == "bound" and varint_at(footer, start)[0] < self._bytes:
                return f"a bound of column {self._name} is shorter than a value"
            if name in self._levels and list_head_at(footer, start)[0] not in self._levels[name]:
                return f"the levels of column {self._name} have another number of {name}"
        return f"a chunk of column {self._name} has no {min(missing)}" if missing else None


def _leaves(footer: bytes, elements: Sequence[Any]) -> Iterator[_Leaf]:
    """Yield the leaf columns in their order. Raises ValueError if the elements are not a tree."""
    left = iter(elements[1:])
    root = {name: value for name, _, _, value in elements[0][0]}

    def below(count: int, definitions: int, repetitions: int) -> Iterator[_Leaf]:
        for _ in range(count):
            found = next(left, None)
            if found is None:
                raise ValueError("its schema lacks a column")
            one = {value[0]: value for value in found[0]}
            if not {"name", "repetition"} <= one.keys():
                raise ValueError("a column has no name or no repetition")
            name, repetition = _text(footer, one["name"]), one["repetition"][3]
            if repetition not in (_REQUIRED, _OPTIONAL, _REPEATED):
                raise ValueError(f"column {name} has the unknown repetition {repetition}")
            deeper = definitions + (repetition != _REQUIRED), repetitions + (repetition == _REPEATED)
            if "children" in one and one["children"][3] > 0:
                yield from below(one["children"][3], *deeper)
                continue
            kind, length = (one[part][3] if part in one else -1 for part in ("type", "length"))
            if kind not in _VALUE_BYTES and (kind, length > 0) != (_FIXED, True):
                raise ValueError(f"column {name} has the unknown type {kind} of length {length}")
            yield _Leaf(name, kind, length, *deeper)

    yield from below(root.get("children", 0), 0, 0)
    if next(left, None) is not None:
        raise ValueError("its schema has more columns than it states")


def _text(footer: bytes, value: FoundValue) -> str:
    """Return a found text. Raises ValueError if it is not UTF-8."""
    length, start = varint_at(footer, value[1])
    return footer[start : start + length].decode()
