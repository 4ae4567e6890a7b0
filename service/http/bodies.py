# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: whose is read, how much of it, for how long, and how many bytes all of them may hold."""

import asyncio
from types import TracebackType

from fastapi import HTTPException
from starlette.types import Message, Receive, Send

#: bytes of an answer that are handed to the connection at once; it takes no more before the client has read most of it
PIECE_BYTES = 64 << 10


def too_large(most: int) -> HTTPException:
    """The refusal of a body of more than ``most`` bytes; of a kind that FastAPI lets through while it reads one."""
    return HTTPException(413, f"the body has more than {most} bytes; most routes take http.max_body")


class Held:
    """Bytes of bodies in memory: at most ``most`` of all requests together, or one body alone, however large.

    Used from one thread, the server's.
    """

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0

    def take(self, count: int, own: int) -> None:
        """Count what has come of a body, of which ``own`` bytes are counted. Raises HTTPException for too many."""
        if self._taken + count > self._most and self._taken > own:
            detail = "the bodies of other requests use all the memory that is set aside for bodies"
            raise HTTPException(503, detail, {"Retry-After": "5"})
        self._taken += count

    def give_back(self, count: int) -> None:
        """Count bytes that are needed no longer."""
        self._taken -= count


class Body:
    """The body of one request: at most ``most`` bytes, within ``seconds``, counted in ``held`` while it is served."""

    def __init__(self, receive: Receive, *, most: int, seconds: float, held: Held) -> None:
        self._receive, self._most, self._held, self._seconds = receive, most, held, seconds
        self._taken, self._complete = 0, False
        self._due = asyncio.get_running_loop().time() + seconds

    def __enter__(self) -> "Body":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.give_back(self._taken)

    async def receive(self) -> Message:
        """See ASGI. Raises HTTPException where the body is too large or too slow, or memory is short."""
        if self._complete:
            return await self._receive()  # that the client has gone
        try:
            async with asyncio.timeout_at(self._due):
                message = await self._receive()
        except TimeoutError:
            detail = f"the body did not come in {self._seconds:g} s; the setting is http.body_timeout"
            raise HTTPException(408, detail) from None
        count = len(message.get("body", b""))
        if self._taken + count > self._most:
            raise too_large(self._most)
        self._held.take(count, self._taken)
        self._taken += count
        self._complete = not message.get("more_body", False)
        return message


def unread(receive: Receive) -> Receive:
    """``receive`` of a request whose body is of no interest: it is found empty, and what comes of it is dropped."""
    told = False

    async def nothing() -> Message:
        nonlocal told
        if not told:
            told = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while (message := await receive())["type"] == "http.request":
            pass
        return message

    return nothing


def in_pieces(send: Send) -> Send:
    """``send`` that hands an answer over as the client reads it, so that one that does not costs little memory."""

    async def sending(message: Message) -> None:
        body = message.get("body", b"")
        rest = max(0, len(body) - 1) // PIECE_BYTES * PIECE_BYTES
        for begin in range(0, rest, PIECE_BYTES):
            piece = body[begin : begin + PIECE_BYTES]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({**message, "body": body[rest:]} if "body" in message else message)

    return sending
