# SPDX-License-Identifier: Apache-2.0
"""Thrift's compact protocol without a schema. Decoding and encoding leaves data unchanged, also unknown fields.

``decode`` and ``encode`` represent a struct by a dictionary from field number to type and value, and a list by the type
of its elements and their values. ``find_values`` finds single values in the bytes of a struct, five times as fast.
``replace_values`` and ``replace_parts`` replace the values found and leave all other bytes as they are.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

Struct = dict[int, tuple[int, Any]]
"""Fields by their numbers, each with its type and its value."""

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
_INTEGERS = (I16, I32, I64)
#: an integer of 64 bits takes at most ten bytes of seven bits
_MAX_SHIFT = 63


class Part(str):
    """The name of a value to find that is not an integer: bytes, a list or a struct."""

    __slots__ = ()


Wanted = Mapping[int, Any]
"""The fields to find, by their numbers.

Each is the name of an integer, a ``Part``, or the wanted fields of a struct or a list of structs.
"""

FoundValue = tuple[str, int, int, int]
"""A found value: its name, the positions of its first byte and behind its last byte, and its value.

The value is that of an integer; it is 0 for values of other types.
"""


def decode(data: bytes) -> Struct:
    """Return the struct at the beginning of ``data``. Raises ValueError if there is none."""
    try:
        return _Reader(data).struct()
    except (IndexError, struct.error, RecursionError) as error:
        raise ValueError("cut short, or no struct of Thrift's compact protocol") from error


def encode(value: Struct) -> bytes:
    """Return the bytes of a struct."""
    out = bytearray()
    _put_struct(out, value)
    return bytes(out)


def find_values(data: bytes, at: int, wanted: Wanted) -> tuple[list[Any], int]:
    """Find the ``wanted`` values of the struct at position ``at``. Returns them and the position behind the struct.

    Each value is a ``FoundValue``, in the order of the bytes; values of a nested struct are among them. A list of
    structs is a list with one entry for each struct: the values found in it, its position and the position behind it.
    Raises ValueError if the bytes at ``at`` are not a struct.
    """
    found: list[Any] = []
    try:
        end = _find(data, at, wanted, found)
    except (IndexError, RecursionError) as error:
        raise ValueError("cut short, or no struct of Thrift's compact protocol") from error
    if end > len(data):
        raise ValueError("a struct that is cut short")
    return found, end


def find_field(data: bytes, number: int) -> tuple[int, int]:
    """Return the position of a field's value in the struct at the beginning of ``data``, and the position behind it.

    Raises ValueError if there is no such field, or no struct.
    """
    at = current = 0
    try:
        while head := data[at]:
            kind, step = head & 15, head >> 4
            if step:
                current, start = current + step, at + 1
            else:  # the number itself follows
                value, start = varint_at(data, at + 1)
                current = (value >> 1) ^ -(value & 1)
            at = start if kind <= FALSE else _end_of_value(data, start, kind)
            if current == number:
                return start, at
    except (IndexError, RecursionError) as error:
        raise ValueError("cut short, or no struct of Thrift's compact protocol") from error
    raise ValueError(f"a struct without field {number}")


def replace_values(data: bytes, start: int, end: int, values: Iterable[tuple[int, int, int]]) -> bytes:
    """Return ``data[start:end]`` with other integers.

    ``values`` are in the order of the bytes. Each one has the first position of an integer, the position behind the
    integer, and its new value.
    """
    return replace_parts(data, start, end, ((first, behind, encode_integer(value)) for first, behind, value in values))


def replace_parts(data: bytes, start: int, end: int, parts: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return ``data[start:end]`` with other bytes in place of ``parts``, which are in the order of the bytes."""
    out = bytearray()
    at = start
    for first, behind, part in parts:
        out += data[at:first]
        out += part
        at = behind
    out += data[at:end]
    return bytes(out)


def encode_integer(value: int) -> bytes:
    """Return the bytes of an integer."""
    out = bytearray()
    _put_zigzag(out, value)
    return bytes(out)


def decode_integer(data: bytes) -> int:
    """Return the integer at the beginning of ``data``. Raises ValueError or IndexError if there is none."""
    value, _ = varint_at(data, 0)
    return (value >> 1) ^ -(value & 1)


def encode_list_head(element: int, size: int) -> bytes:
    """Return the bytes before the elements of a list of ``size`` elements of one type."""
    out = bytearray([min(size, 15) << 4 | element])
    if size >= 15:
        _put_varint(out, size)
    return bytes(out)


def _find(data: bytes, at: int, wanted: Wanted, found: list[Any]) -> int:
    number = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return at
        kind = head & 15
        if head > 15:
            number += head >> 4
        else:
            value, at = varint_at(data, at)
            number = (value >> 1) ^ -(value & 1)
        want = wanted.get(number)
        if want is None:
            # The most frequent case, without a call.
            if I16 <= kind <= I64:
                while data[at] > 127:
                    at += 1
                at += 1
            elif kind > FALSE:
                at = _end_of_value(data, at, kind)
        elif isinstance(want, str):
            start, value = at, 0
            if isinstance(want, Part):
                if kind not in (BINARY, LIST, STRUCT):
                    raise ValueError(f"field {number} has the unexpected type {kind}")
                at = _end_of_value(data, at, kind)
            elif I16 <= kind <= I64:
                value, at = varint_at(data, at)
                value = (value >> 1) ^ -(value & 1)
            else:
                # Readers ignore a field of another type. Its value must not be replaced by an integer.
                raise ValueError(f"field {number} has the unexpected type {kind}")
            found.append((want, start, at, value))
        elif kind == STRUCT:
            at = _find(data, at, want, found)
        elif kind == LIST:
            size, element, at = list_head_at(data, at)
            if element != STRUCT:
                raise ValueError("a list of other elements than structs")
            elements: list[Any] = []
            for _ in range(size):
                start, inside = at, list[Any]()
                at = _find(data, at, want, inside)
                elements.append((inside, start, at))
            found.append(elements)
        else:
            raise ValueError(f"field {number} has the unexpected type {kind}")


def _end_of_value(data: bytes, at: int, kind: int) -> int:
    """Return the position after the value of type ``kind`` at position ``at``."""
    if I16 <= kind <= I64:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == BINARY:
        size, at = varint_at(data, at)
        return at + size
    if kind == STRUCT:
        return _end_of_struct(data, at)
    if kind in (LIST, SET):
        size, element, at = list_head_at(data, at)
        for _ in range(size):
            # The value of a boolean is in the head of a field, but takes a byte in a list.
            at = at + 1 if element <= BYTE else _end_of_value(data, at, element)
        return at
    if kind == BYTE:
        return at + 1
    if kind == DOUBLE:
        return at + 8
    raise ValueError(f"type {kind} does not occur in Parquet's structs")


def _end_of_struct(data: bytes, at: int) -> int:
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return at
        if head <= 15:
            _, at = varint_at(data, at)
        kind = head & 15
        if kind > FALSE:
            at = _end_of_value(data, at, kind)


def list_head_at(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the number of elements of the list at ``at``, their type, and the position of the first one."""
    head = data[at]
    size, at = varint_at(data, at + 1) if head >> 4 == 15 else (head >> 4, at + 1)
    if size > len(data) - at:  # each element takes at least a byte
        raise ValueError("a list that is longer than the data")
    return size, head & 15, at


def varint_at(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned integer at position ``at``, and the position behind it."""
    byte = data[at]
    at += 1
    if byte < 128:
        return byte, at
    value, shift = byte & 127, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > _MAX_SHIFT:
            raise ValueError("an integer of more than 64 bits")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while True:
            head = self._byte()
            if head == 0:
                return fields
            kind, step = head & 15, head >> 4
            number = number + step if step else self._zigzag()
            # The value of a boolean field is in its type.
            fields[number] = (kind, None if kind in (TRUE, FALSE) else self._value(kind))

    def _value(self, kind: int) -> Any:
        if kind in _INTEGERS:
            return self._zigzag()
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind == STRUCT:
            return self.struct()
        if kind in (LIST, SET):
            head = self._byte()
            element, size = head & 15, head >> 4
            size = self._varint() if size == 15 else size
            if size > len(self._data) - self._at:  # each element takes at least a byte
                raise ValueError("a list that is longer than the data")
            return element, [self._value(element) for _ in range(size)]
        if kind in (TRUE, FALSE, BYTE):
            return self._byte()
        if kind == DOUBLE:
            return struct.unpack("<d", self._bytes(8))[0]
        raise ValueError(f"type {kind} does not occur in Parquet's structs")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        if self._at > len(self._data):
            raise IndexError
        return self._data[self._at - count : self._at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > _MAX_SHIFT:
                raise ValueError("an integer of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def _put_struct(out: bytearray, fields: Struct) -> None:
    before = 0
    for number, (kind, value) in sorted(fields.items()):
        if 0 < number - before < 16:
            out.append((number - before) << 4 | kind)
        else:
            out.append(kind)
            _put_zigzag(out, number)
        before = number
        if kind not in (TRUE, FALSE):
            _put(out, kind, value)
    out.append(0)


def _put(out: bytearray, kind: int, value: Any) -> None:
    if kind in _INTEGERS:
        _put_zigzag(out, value)
    elif kind == BINARY:
        _put_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _put_struct(out, value)
    elif kind in (LIST, SET):
        element, values = value
        out += encode_list_head(element, len(values))
        for one in values:
            _put(out, element, one)
    elif kind == DOUBLE:
        out += struct.pack("<d", value)
    else:
        out.append(value)


def _put_zigzag(out: bytearray, value: int) -> None:
    _put_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _put_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
