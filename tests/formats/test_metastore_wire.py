# SPDX-License-Identifier: Apache-2.0
"""What goes over the wire to a metastore, and what comes back, byte by byte."""

import io
import socket
import struct
import threading
from datetime import timedelta

import pytest

from lake.errors import Rejected, Transient
from lake.metastore import MetastoreClient, MetastorePartition, normalized_uri, partition_values
from lake.metastore.thrift import (
    BOOL,
    BYTE,
    DOUBLE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRING,
    STRUCT,
    InvalidMessage,
    Struct,
    ThriftList,
    ThriftMap,
    encode_call,
    read_reply,
)

EVERYTHING: Struct = {
    1: (BOOL, True),
    2: (BYTE, -3),
    3: (DOUBLE, 1.5),
    4: (I16, -300),
    5: (I32, 1 << 30),
    6: (I64, -(1 << 60)),
    7: (STRING, "São Paulo"),
    8: (STRING, b"\xff\xfe no text"),
    9: (STRUCT, {1: (BOOL, False), 30_000: (STRING, "of a later release")}),
    10: (MAP, ThriftMap(STRING, I32, {"a": 1, "b": 2})),
    11: (SET, ThriftList(I64, [1, 2])),
    12: (LIST, ThriftList(STRUCT, [{1: (STRING, "")}, {}])),
    -1: (LIST, ThriftList(LIST, [ThriftList(BYTE, [])])),
}


def answer(message: bytes, kind: int = 2) -> bytes:
    """What was a call as the answer to it."""
    return struct.pack(">I", 0x80010000 | kind) + message[4:]


def test_every_field_of_a_struct_is_written_as_it_was_read():
    message = answer(encode_call("get_table", 7, EVERYTHING))
    reply = read_reply(io.BytesIO(message))
    assert (reply.name, reply.call_number, reply.is_failed) == ("get_table", 7, False)
    assert reply.body == EVERYTHING
    assert list(reply.body) == list(EVERYTHING), "fields stay in their order"
    assert answer(encode_call(reply.name, reply.call_number, reply.body)) == message


def test_a_partition_that_changes_its_location_keeps_unknown_fields():
    before = MetastorePartition(
        {1: (LIST, ThriftList(STRING, ["d0"])), 6: (STRUCT, {2: (STRING, "file:/a"), 99: (I32, 5)}), 98: (I64, 9)}
    )
    after = before.with_changes(before.storage.with_location("file:/b"), {"lakefold.plan": "p"})
    assert (after.storage.location, after.parameters, after.values) == ("file:/b", {"lakefold.plan": "p"}, ("d0",))
    assert (after.raw[98], after.storage.raw[99]) == ((I64, 9), (I32, 5))
    assert before.storage.location == "file:/a"


@pytest.mark.parametrize("cut", range(1, len(encode_call("get_table", 7, EVERYTHING)), 7))
def test_half_an_answer_is_none(cut: int):
    with pytest.raises(EOFError):
        read_reply(io.BytesIO(answer(encode_call("get_table", 7, EVERYTHING))[:-cut]))


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n", b"\0\0\0\x15\x82\x21\1\0", b"\x80\1\0\2\x7f\xff\xff\xff"]
)
def test_bytes_outside_the_binary_protocol_are_no_answer(greeting: bytes):
    with pytest.raises(InvalidMessage):
        read_reply(io.BytesIO(greeting + b"\0" * 40))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("2024-01-01", "2024-01-01"),
        ("a b", "a b"),
        ("K/L", "K%2FL"),
        ("a=b", "a%3Db"),
        ("100%", "100%25"),
        ("São Paulo", "São Paulo"),
        ("12:30", "12%3A30"),
        ("x\ty", "x%09y"),
        ("{[^]}", "%7B%5B%5E%5D}"),
        ("€", "€"),
        ("\\'\"*?#", "%5C%27%22%2A%3F%23"),
    ],
)
def test_values_of_partitions_are_read_from_names_as_hive_writes_them(value: str, written: str):
    assert partition_values(f"a={written}/b=x") == (value, "x")


def test_addresses_have_one_spelling_and_invalid_ones_are_refused_with_an_example():
    assert normalized_uri(" thrift://Meta1 ,thrift://[fe80::1]:9000/") == "thrift://meta1:9083,thrift://[fe80::1]:9000"
    for wrong in ("", "meta1:9083", "http://meta1:9083", "thrift://meta1:99999", "thrift://a/b"):
        with pytest.raises(ValueError, match="thrift://host:9083"):
            normalized_uri(wrong)
        with pytest.raises(Rejected):
            MetastoreClient(wrong)


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4])
def test_a_server_that_is_no_metastore_or_needs_tls_or_kerberos_is_named_as_such(says: bytes):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(says)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Transient, match="without TLS or Kerberos"):
            MetastoreClient(f"thrift://127.0.0.1:{server.getsockname()[1]}", timeout=timedelta(seconds=10))
        thread.join()
