# SPDX-License-Identifier: Apache-2.0
"""The limits of request bodies: size and time of one body, and memory of all."""

import asyncio
from types import TracebackType

from fastapi import HTTPException
from starlette.types import Message, Receive, Send

#: bytes of an answer that are sent at once; the connection accepts more after the client has read most of them
CHUNK_BYTES = 64 << 10


def body_too_large(max_bytes: int) -> HTTPException:
    """Return the error for a body of more than ``max_bytes`` bytes.

    FastAPI passes an HTTPException through while it reads a body.
    """
    return HTTPException(413, f"the body has more than {max_bytes} bytes; most routes take http.max_body_size")


class BodyMemory:
    """The memory of request bodies: at most ``max_bytes`` of all requests together, or one larger body alone.

    Used from the server's thread only.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._reserved = max_bytes, 0

    def reserve(self, count: int, already_reserved: int) -> None:
        """Add ``count`` bytes of a body that already has ``already_reserved``. Raises HTTPException if too many."""
        if self._reserved + count > self._max_bytes and self._reserved > already_reserved:
            detail = "the bodies of other requests use all the memory that is set aside for bodies"
            raise HTTPException(503, detail, {"Retry-After": "5"})
        self._reserved += count

    def release(self, count: int) -> None:
        """Subtract bytes that are no longer needed."""
        self._reserved -= count


class LimitedBody:
    """The body of one request: at most ``max_bytes`` bytes, received within ``seconds``.

    Its bytes count in ``memory`` while the request is served.
    """

    def __init__(self, receive: Receive, *, max_bytes: int, seconds: float, memory: BodyMemory) -> None:
        self._receive, self._max_bytes, self._memory, self._seconds = receive, max_bytes, memory, seconds
        self._received_bytes, self._complete = 0, False
        self._deadline = asyncio.get_running_loop().time() + seconds

    def __enter__(self) -> "LimitedBody":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.release(self._received_bytes)

    async def receive(self) -> Message:
        """See ASGI. Raises HTTPException if the body is too large or too slow, or if memory is short."""
        if self._complete:
            return await self._receive()  # the message that the client has disconnected
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            detail = f"the body did not come in {self._seconds:g} s; the setting is http.body_timeout"
            raise HTTPException(408, detail) from None
        count = len(message.get("body", b""))
        if self._received_bytes + count > self._max_bytes:
            raise body_too_large(self._max_bytes)
        self._memory.reserve(count, self._received_bytes)
        self._received_bytes += count
        self._complete = not message.get("more_body", False)
        return message


def discard_body(receive: Receive) -> Receive:
    """Wrap ``receive`` so that the body appears empty and its bytes are discarded."""
    sent_empty = False

    async def nothing() -> Message:
        nonlocal sent_empty
        if not sent_empty:
            sent_empty = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while (message := await receive())["type"] == "http.request":
            pass
        return message

    return nothing


def send_chunked(send: Send) -> Send:
    """Wrap ``send`` so that large answers are sent in chunks: a client that does not read costs little memory."""

    async def sending(message: Message) -> None:
        body = message.get("body", b"")
        rest = max(0, len(body) - 1) // CHUNK_BYTES * CHUNK_BYTES
        for begin in range(0, rest, CHUNK_BYTES):
            piece = body[begin : begin + CHUNK_BYTES]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({**message, "body": body[rest:]} if "body" in message else message)

    return sending
