# SPDX-License-Identifier: Apache-2.0
"""The calls of a Hive metastore that lakefold needs. Their errors are outcomes of ``lake.errors``."""

import getpass
import re
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

from lake.errors import CommitUnknown, Rejected, Transient
from lake.metastore import thrift
from lake.metastore.objects import MetastorePartition, MetastoreTable, partition_values
from lake.metastore.thrift import I16, I32, LIST, STRING, STRUCT, Struct, ThriftList, string_list, string_map

TIMEOUT = timedelta(seconds=30)
"""How long the client waits for one answer. The server may still execute the call later."""

BATCH_SIZE = 500
"""How many partitions or tables one call requests: the answer is held in memory on both sides."""

_ADDRESS = re.compile(r"thrift://(?:\[(?P<ipv6>[0-9a-fA-F:]+)\]|(?P<host>[^\s:/\[\]]+))(?::(?P<port>\d{1,5}))?/?")
_DEFAULT_PORT = 9083
#: the field of a reply with the result; each other field is a declared exception, its message in field 1
_RESULT_FIELD, _MESSAGE = 0, 1
#: the field with the reason why a server refused a call, and its value for an unknown call
_REASON, _UNKNOWN_CALL = 2, 1


def normalized_uri(uri: str) -> str:
    """Return ``uri`` in its stored spelling: no blanks, with ports.

    Raises ValueError if it is not the address of a metastore.
    """
    return ",".join(f"thrift://{f'[{host}]' if ':' in host else host}:{port}" for host, port in _addresses(uri))


class MetastoreClient(AbstractContextManager["MetastoreClient"]):
    """One connection to a metastore; used by one thread.

    ``uri`` is as in ``hive.metastore.uris``: several servers with commas between them share a database, and the first
    reachable one is used.
    """

    def __init__(self, uri: str, *, timeout: timedelta = TIMEOUT) -> None:
        try:
            self._addresses = _addresses(uri)
        except ValueError as error:
            raise Rejected(str(error)) from error
        self.uri, self._timeout = uri, timeout.total_seconds()
        self._number = 0
        self._awaits_reply = False
        self._socket = self._connect()
        self.opened_at = time.monotonic()
        self._source = self._socket.makefile("rb", buffering=1 << 16)
        try:
            # Without Kerberos this call identifies the caller, for the listeners and hooks of the metastore's owner.
            self._call("set_ugi", {1: (STRING, _user()), 2: string_list([])})
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._source.close()
        with suppress(OSError):
            self._socket.close()

    def is_reusable(self) -> bool:
        """True if the next call can be made: no call is unanswered, and the server has not hung up or sent data."""
        if self._awaits_reply or self._socket.fileno() < 0:
            return False
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN | select.POLLRDHUP)
            return not poll.poll(0)
        except OSError:
            return False

    # Reads.

    def databases(self) -> Sequence[str]:
        """Return the names of all databases, sorted."""
        return sorted(self._call_for_result("get_databases", {1: (STRING, "*")}).items)

    def table_names(self, database: str) -> Sequence[str]:
        """Return the names of all tables and views of a database, sorted."""
        return sorted(self._call_for_result("get_tables", {1: (STRING, database), 2: (STRING, "*")}).items)

    def tables(self, database: str, names: Sequence[str]) -> Iterator[MetastoreTable]:
        """Yield the existing ones of the named tables."""
        for some in _batches(names):
            arguments: Struct = {1: (STRING, database), 2: string_list(some)}
            for raw in self._call_for_result("get_table_objects_by_name", arguments).items:
                yield MetastoreTable(raw)

    def table(self, database: str, name: str) -> MetastoreTable | None:
        """Return the table of this name; None if there is none."""
        found = self._call("get_table", _table_arguments(database, name), missing=2)
        return MetastoreTable(found[_RESULT_FIELD][1]) if _RESULT_FIELD in found else None

    def partition_names(self, database: str, table: str) -> Sequence[str]:
        """Return the names of all partitions, such as ``day=2024-01-01/city=K%2FL``."""
        return list(
            self._call_for_result("get_partition_names", _table_arguments(database, table) | {3: (I16, -1)}).items
        )

    def partitions(self, database: str, table: str, names: Sequence[str]) -> Iterator[tuple[str, MetastorePartition]]:
        """Yield the existing ones of the named partitions, each with its name."""
        for some in _batches(names):
            by_values = {partition_values(name): name for name in some}
            arguments = _table_arguments(database, table) | {3: string_list(some)}
            for raw in self._call_for_result("get_partitions_by_names", arguments).items:
                partition = MetastorePartition(raw)
                if (name := by_values.get(partition.values)) is not None:
                    yield name, partition

    # Changes.

    def alter_partitions(self, database: str, table: str, partitions: Sequence[MetastorePartition]) -> None:
        """Replace the partitions with the same values by these, all or none, in one transaction.

        Nothing is compared: any earlier state is overwritten. Raises CommitUnknown if there was no answer; the call may
        still be executed. Raises Transient if the answer is an error. The call may have been executed then too, since
        the metastore's listeners run afterwards and may fail: the caller has to check.
        """
        changed = LIST, ThriftList(STRUCT, [partition.raw for partition in partitions])
        self._call_alter(
            "alter_partitions_with_environment_context",
            _table_arguments(database, table) | {3: changed, 4: _WITHOUT_STATS_UPDATE},
        )

    def alter_table(self, database: str, name: str, table: MetastoreTable) -> None:
        """Replace the table of that name by ``table``, with the guarantees and errors of ``alter_partitions``."""
        self._call_alter(
            "alter_table_with_environment_context",
            _table_arguments(database, name) | {3: (STRUCT, table.raw), 4: _WITHOUT_STATS_UPDATE},
        )

    # The wire.

    def _call_for_result(self, name: str, arguments: Struct) -> Any:
        found = self._call(name, arguments)
        if _RESULT_FIELD not in found:
            raise Transient(f"{self.uri}: the reply to {name} has no result")
        return found[_RESULT_FIELD][1]

    def _call_alter(self, name: str, arguments: Struct) -> None:
        try:
            self._call(name, arguments)
        except _NoReply as error:
            raise CommitUnknown(f"{error}; it is unknown whether the call was executed") from error

    def _call(self, name: str, arguments: Struct, *, missing: int | None = None) -> Struct:
        """Return the reply to a call.

        ``missing`` is the field of the exception for an object that does not exist; the reply is then empty.
        """
        self._number += 1
        self._awaits_reply = True
        try:
            self._socket.sendall(thrift.encode_call(name, self._number, arguments))
            reply = thrift.read_reply(self._source)
            self._awaits_reply = False
        except (OSError, EOFError, thrift.InvalidMessage) as error:
            self.close()
            raise _NoReply(
                f"{self.uri}: {name}: {error}; lakefold speaks Thrift's binary protocol to it, without TLS or Kerberos"
                if self._number == 1
                else f"{self.uri}: {name}: {error}"
            ) from error
        if (reply.name, reply.call_number) != (name, self._number):
            self.close()
            raise _NoReply(f"{self.uri}: the reply to {name} is for {reply.name}")
        if reply.is_failed:
            unknown = reply.body.get(_REASON, (I32, 0))[1] == _UNKNOWN_CALL
            raise (Rejected if unknown else Transient)(f"{self.uri}: {name}: {_exception_message(reply.body)}")
        exceptions = {number: value for number, (_, value) in reply.body.items() if number != _RESULT_FIELD}
        if missing in exceptions:
            return {}
        if exceptions:
            raise Transient(f"{self.uri}: {name}: {_exception_message(next(iter(exceptions.values())))}")
        return reply.body

    def _connect(self) -> socket.socket:
        problems = []
        for host, port in self._addresses:
            try:
                return socket.create_connection((host, port), timeout=self._timeout)
            except OSError as error:
                problems.append(f"{host}:{port}: {error.strerror or error}")
        raise Transient(f"no metastore can be reached: {'; '.join(problems)}")


class _NoReply(Transient):
    """The call was sent, or may have been, and its result is unknown."""


#: the metastore must not list the changed files and count their bytes itself: the call has the counts
_WITHOUT_STATS_UPDATE = STRUCT, {1: string_map({"DO_NOT_UPDATE_STATS": "true"})}


def _batches(names: Sequence[str]) -> Iterator[list[str]]:
    return (list(names[start : start + BATCH_SIZE]) for start in range(0, len(names), BATCH_SIZE))


def _table_arguments(database: str, table: str) -> Struct:
    return {1: (STRING, database), 2: (STRING, table)}


def _exception_message(raw: Mapping[int, tuple[int, Any]]) -> str:
    return str(raw[_MESSAGE][1]) if isinstance(raw, Mapping) and _MESSAGE in raw else "no message"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "lakefold"  # a container's user without a name


def _addresses(uri: str) -> list[tuple[str, int]]:
    found = []
    for one in filter(None, (part.strip() for part in uri.split(","))):
        match = _ADDRESS.fullmatch(one)
        if match is None or int(match["port"] or _DEFAULT_PORT) > 0xFFFF:
            raise ValueError(f"{one!r} is not the address of a metastore; write it as thrift://host:{_DEFAULT_PORT}")
        found.append((match["ipv6"] or match["host"].lower(), int(match["port"] or _DEFAULT_PORT)))
    if not found:
        raise ValueError(f"the address of the metastore is empty; write it as thrift://host:{_DEFAULT_PORT}")
    return found
