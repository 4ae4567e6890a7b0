# SPDX-License-Identifier: Apache-2.0
"""Copies byte ranges of files to the end of a new file: by the kernel on local file systems, else by parallel reads."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from types import TracebackType
from typing import Self

import pyarrow as pa
from pyarrow import fs as pafs

from executors.engines.footer import MAGIC
from lake.errors import Transient, first_line
from lake.storage.local import sync_path

#: the size of a read if the kernel does not copy
_READ_BYTES = 8 << 20
#: concurrent reads of one file; a copy keeps these parts in memory, and the part that is being written
_READS_AHEAD = 4
#: errors that only the written file can cause; the read file may cause all other errors too
_FULL = frozenset({EDQUOT, EFBIG, ENOSPC})
#: the bytes that the kernel copies between two checks for a cancel
_KERNEL_COPY_BYTES = 64 << 20
#: up to these sizes a file is read at once
_WHOLE_LOCAL_BYTES, _WHOLE_REMOTE_BYTES = 1 << 20, 8 << 20
#: parts of an output are collected up to this size before they are written
_WRITE_BYTES = 1 << 20


class RangeReader:
    """An open file whose byte ranges are read or copied, within a ``with`` block.

    Raises OSError or ``pa.ArrowException`` if the file can't be read.
    """

    def __init__(self, filesystem: pafs.FileSystem, path: str) -> None:
        self.is_local = isinstance(filesystem, pafs.LocalFileSystem)
        self._filesystem, self._path = filesystem, path

    def __enter__(self) -> Self:
        self._content: bytes | None = None
        if self.is_local:
            self.fd = os.open(self._path, os.O_RDONLY)
            size, most = os.fstat(self.fd).st_size, _WHOLE_LOCAL_BYTES
        else:
            self._file = self._filesystem.open_input_file(self._path)
            size, most = self._file.size(), _WHOLE_REMOTE_BYTES
        if size <= most:
            # One read takes less time than one for the header of each page.
            try:
                self._content = self._read(0, size)
            except BaseException:
                self.__exit__(None, None, None)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_local:
            os.close(self.fd)
        else:
            self._file.close()

    def read(self, start: int, size: int) -> bytes:
        """Return ``size`` bytes. Raises ``pa.ArrowInvalid`` if the file has fewer."""
        data = self._read(start, size) if self._content is None else self._content[start : start + size]
        if len(data) != size:
            raise pa.ArrowInvalid(f"{self._path} ends within {size} bytes at {start}")
        return data

    def _read(self, start: int, size: int) -> bytes:
        return os.pread(self.fd, size, start) if self.is_local else bytes(self._file.read_at(size, start))

    def read_ahead(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from ``start`` to ``end`` in parts, with several reads at the same time."""
        if end - start <= _READ_BYTES:
            yield self.read(start, end - start)
            return
        parts = ((at, min(_READ_BYTES, end - at)) for at in range(start, end, _READ_BYTES))
        with ThreadPoolExecutor(_READS_AHEAD, "stitch") as pool:
            reads: deque[Future[bytes]] = deque()
            for at, size in parts:
                reads.append(pool.submit(self.read, at, size))
                if len(reads) == _READS_AHEAD:
                    yield reads.popleft().result()
            while reads:
                yield reads.popleft().result()


class RangeWriter:
    """A new Parquet file to which ranges and bytes are appended, within a ``with`` block.

    A local file is on disk when the block ends. If the block fails, the file is removed. Raises Transient if the file
    can't be written.
    """

    def __init__(self, filesystem: pafs.FileSystem, path: str, check: Callable[[], None]) -> None:
        """``check`` is called between parts, and may raise to end the work."""
        self._is_local = isinstance(filesystem, pafs.LocalFileSystem)
        self._filesystem, self._path, self._check = filesystem, path, check
        #: the number of bytes written
        self.position = 0
        self._waiting = bytearray()
        self._may_use_kernel = self._is_local

    def __enter__(self) -> Self:
        with self._writing():
            if self._is_local:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            else:
                self._stream = self._filesystem.open_output_stream(self._path, compression=None)
        self.append(MAGIC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort()
            return
        try:
            self._flush()
        except BaseException:
            self._abort()
            raise
        try:
            with self._writing():
                if self._is_local:
                    os.close(self._fd)
                    # The inputs may be deleted soon; then this file is the only copy of the rows.
                    sync_path(self._path)
                else:
                    self._stream.close()
        except BaseException:
            self._remove()
            raise

    def append(self, data: bytes) -> int:
        """Append ``data``. Returns its position."""
        if len(self._waiting) + len(data) > _WRITE_BYTES:
            self._flush()
        if len(data) > _WRITE_BYTES:
            self._write(data)
        else:
            self._waiting += data
        self.position += len(data)
        return self.position - len(data)

    def _flush(self) -> None:
        """Write the bytes that wait for further ones: an output has thousands of small parts."""
        self._write(bytes(self._waiting))
        self._waiting.clear()

    def _write(self, data: bytes) -> None:
        with self._writing():
            if self._is_local:
                left = memoryview(data)
                while left:
                    left = left[os.write(self._fd, left) :]
            else:
                self._stream.write(data)

    def copy(self, source: RangeReader, start: int, end: int) -> None:
        """Append the bytes of ``source`` from ``start`` to ``end``."""
        if source.is_local and self._may_use_kernel:
            start = self._copy_in_kernel(source, start, end)
        if start == end:
            return
        for part in source.read_ahead(start, end):
            self._check()
            self.append(part)

    def _copy_in_kernel(self, source: RangeReader, start: int, end: int) -> int:
        """Append bytes of ``source`` from ``start``. Returns the position of the first byte that is still to copy.

        Raises Transient if the copied bytes differ.
        """
        self._flush()
        while start < end:
            self._check()
            try:
                copied = os.copy_file_range(source.fd, self._fd, min(end - start, _KERNEL_COPY_BYTES), start)
            except OSError as error:
                if error.errno in _FULL:
                    raise self._write_error(error) from error
                # Some mounts do not support this call, or fail only here. A read shows whether the file is damaged.
                copied = 0
            if not copied:
                self._may_use_kernel = False
                return start
            self._compare(source, start, copied)
            start, self.position = start + copied, self.position + copied
        return end

    def _compare(self, source: RangeReader, start: int, size: int) -> None:
        for offset in range(0, size, _READ_BYTES):
            length = min(_READ_BYTES, size - offset)
            if source.read(start + offset, length) != os.pread(self._fd, length, self.position + offset):
                raise Transient(f"{self._path}: bytes that the kernel copied differ from those of the input")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise self._write_error(error) from error

    def _write_error(self, error: Exception) -> Transient:
        return Transient(f"{self._path} can't be written: {first_line(error)}")

    def _abort(self) -> None:
        with suppress(Exception):
            if self._is_local:
                os.close(self._fd)
            else:
                self._stream.close()
        self._remove()

    def _remove(self) -> None:
        with suppress(OSError):
            self._filesystem.delete_file(self._path)
