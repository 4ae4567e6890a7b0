# SPDX-License-Identifier: Apache-2.0
"""Thrift's binary protocol without generated code: structs can be written back with all fields, unknown ones included.

A metastore's objects are changed by sending the whole object back. Classes generated from one release's definitions
would drop fields that only other releases have. Here a struct is a dictionary of fields by number, each with its type.
"""

import struct
from dataclasses import dataclass
from typing import Any, Protocol

BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, STRUCT, MAP, SET, LIST = 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15
_STOP = 0
_VERSION_1 = 0x80010000
_CALL, _REPLY, _EXCEPTION = 1, 2, 3
#: a longer name shows that the message is of another protocol, for example a server's greeting
_LONGEST_NAME = 1 << 10

_FIXED = {
    BYTE: struct.Struct(">b"),
    DOUBLE: struct.Struct(">d"),
    I16: struct.Struct(">h"),
    I32: struct.Struct(">i"),
    I64: struct.Struct(">q"),
}
_I16, _I32 = _FIXED[I16], _FIXED[I32]
_LIST_HEAD, _MAP_HEAD, _FIELD_HEAD = struct.Struct(">bi"), struct.Struct(">bbi"), struct.Struct(">bh")

Struct = dict[int, tuple[int, Any]]
"""Fields by number, each with its type and its value. Strings are ``str``, or ``bytes`` if they are not UTF-8."""


class InvalidMessage(Exception):
    """The received data are not a message of the binary protocol."""


class Readable(Protocol):
    """A source of bytes; ``read`` returns fewer than requested only at the end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ThriftList:
    """A list or a set: the type of its items, and the items."""

    kind: int
    items: list[Any]


@dataclass(frozen=True, slots=True)
class ThriftMap:
    """A map: the types of its keys and values, and the pairs."""

    key_kind: int
    value_kind: int
    pairs: dict[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to a call. ``is_failed``: the server refused the call, for example because it lacks the function."""

    name: str
    call_number: int
    is_failed: bool
    body: Struct


def string_list(values: list[str]) -> tuple[int, ThriftList]:
    """Return a list of strings, as the value of a field."""
    return LIST, ThriftList(STRING, list(values))


def string_map(values: dict[str, str]) -> tuple[int, ThriftMap]:
    """Return a map of strings, as the value of a field."""
    return MAP, ThriftMap(STRING, STRING, dict(values))


def encode_call(name: str, number: int, arguments: Struct) -> bytes:
    """Return the message that calls a function."""
    parts: list[bytes] = [_U32.pack(_VERSION_1 | _CALL), _string(name), _I32.pack(number)]
    _write(parts, STRUCT, arguments)
    return b"".join(parts)


def read_reply(source: Readable) -> Reply:
    """Return the next message.

    Raises InvalidMessage if the data are not a reply, EOFError if they end before or within a message.
    """
    (head,) = _U32.unpack(_read_exactly(source, 4))
    kind = head & 0xFF
    if head & 0xFFFF0000 != _VERSION_1 or kind not in (_REPLY, _EXCEPTION):
        raise InvalidMessage(f"the answer begins with {head:#010x}, so it is not a reply of Thrift's binary protocol")
    (length,) = _I32.unpack(_read_exactly(source, 4))
    if not 0 <= length <= _LONGEST_NAME:
        raise InvalidMessage(f"the name of a call has {length} bytes but must have 0 to {_LONGEST_NAME}")
    name = _read_exactly(source, length).decode(errors="replace")
    (number,) = _I32.unpack(_read_exactly(source, 4))
    return Reply(name=name, call_number=number, is_failed=kind == _EXCEPTION, body=_read(source, STRUCT))


_U32 = struct.Struct(">I")


def _read_exactly(source: Readable, size: int) -> bytes:
    found = source.read(size)
    if len(found) != size:
        raise EOFError("the connection was closed within an answer")
    return found


def _read(source: Readable, kind: int) -> Any:
    if kind == STRING:
        (size,) = _I32.unpack(_read_exactly(source, 4))
        if size < 0:
            raise InvalidMessage(f"the length of a string is {size} but must not be negative")
        found = _read_exactly(source, size)
        try:
            return found.decode()
        except UnicodeDecodeError:
            return found
    if kind == STRUCT:
        fields: Struct = {}
        while (field := _read_exactly(source, 1)[0]) != _STOP:
            (identifier,) = _I16.unpack(_read_exactly(source, 2))
            fields[identifier] = field, _read(source, field)
        return fields
    if kind in _FIXED:
        fixed = _FIXED[kind]
        return fixed.unpack(_read_exactly(source, fixed.size))[0]
    if kind == BOOL:
        return _read_exactly(source, 1) != b"\0"
    if kind in (LIST, SET):
        item, count = _LIST_HEAD.unpack(_read_exactly(source, 5))
        return ThriftList(item, [_read(source, item) for _ in range(count)])
    if kind == MAP:
        key, value, count = _MAP_HEAD.unpack(_read_exactly(source, 6))
        return ThriftMap(key, value, {_read(source, key): _read(source, value) for _ in range(count)})
    raise InvalidMessage(f"{kind} is not a type of the binary protocol")


def _string(value: str | bytes) -> bytes:
    encoded = value.encode() if isinstance(value, str) else value
    return _I32.pack(len(encoded)) + encoded


def _write(parts: list[bytes], kind: int, value: Any) -> None:
    if kind == STRING:
        parts.append(_string(value))
    elif kind == STRUCT:
        for identifier, (field, inner) in value.items():
            parts.append(_FIELD_HEAD.pack(field, identifier))
            _write(parts, field, inner)
        parts.append(b"\0")
    elif kind in _FIXED:
        parts.append(_FIXED[kind].pack(value))
    elif kind == BOOL:
        parts.append(b"\1" if value else b"\0")
    elif kind in (LIST, SET):
        parts.append(_LIST_HEAD.pack(value.kind, len(value.items)))
        for item in value.items:
            _write(parts, value.kind, item)
    elif kind == MAP:
        parts.append(_MAP_HEAD.pack(value.key_kind, value.value_kind, len(value.pairs)))
        for key, inner in value.pairs.items():
            _write(parts, value.key_kind, key)
            _write(parts, value.value_kind, inner)
    else:
        raise InvalidMessage(f"{kind} is not a type of the binary protocol")
