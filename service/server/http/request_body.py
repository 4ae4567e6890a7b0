# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: whose is read, how much of it, for how long, and how many bytes all of them may hold."""

import asyncio
from types import TracebackType

from fastapi import HTTPException
from starlette.types import Message, Receive, Send

#: bytes of an answer that are handed to the connection at once; it takes no more before the client has read most of it
CHUNK_BYTES = 64 << 10


def body_too_large(max_bytes: int) -> HTTPException:
    """The refusal of a body of more than ``most`` bytes; of a kind that FastAPI lets through while it reads one."""
    return HTTPException(413, f"the body has more than {max_bytes} bytes; most routes take http.max_body")


class BodyMemory:
    """Bytes of bodies in memory: at most ``most`` of all requests together, or one body alone, however large.

    Used from one thread, the server's.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._reserved = max_bytes, 0

    def reserve(self, count: int, already_reserved: int) -> None:
        """Count what has come of a body, of which ``own`` bytes are counted. Raises HTTPException for too many."""
        if self._reserved + count > self._max_bytes and self._reserved > already_reserved:
            detail = "the bodies of other requests use all the memory that is set aside for bodies"
            raise HTTPException(503, detail, {"Retry-After": "5"})
        self._reserved += count

    def release(self, count: int) -> None:
        """Count bytes that are needed no longer."""
        self._reserved -= count


class LimitedBody:
    """The body of one request: at most ``most`` bytes, within ``seconds``, counted in ``held`` while it is served."""

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
        """See ASGI. Raises HTTPException where the body is too large or too slow, or memory is short."""
        if self._complete:
            return await self._receive()  # that the client has gone
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
    """``receive`` of a request whose body is of no interest: it is found empty, and what comes of it is dropped."""
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
    """``send`` that hands an answer over as the client reads it, so that one that does not costs little memory."""

    async def sending(message: Message) -> None:
        body = message.get("body", b"")
        rest = max(0, len(body) - 1) // CHUNK_BYTES * CHUNK_BYTES
        for begin in range(0, rest, CHUNK_BYTES):
            piece = body[begin : begin + CHUNK_BYTES]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({**message, "body": body[rest:]} if "body" in message else message)

    return sending
