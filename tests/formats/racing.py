# SPDX-License-Identifier: Apache-2.0
"""Many that ask for one lock at the same moment."""

import threading
from collections.abc import Sequence
from typing import Protocol, TypeVar

from lake.errors import Transient


class Lock(Protocol):
    """What can be taken and is refused to all others."""

    def take(self, doing: str) -> None: ...


AnyLock = TypeVar("AnyLock", bound=Lock)


def winners(locks: Sequence[AnyLock]) -> list[AnyLock]:
    """Those of ``locks`` that were got when a thread for each asked for it at once, to be ``racing``."""
    together, got = threading.Barrier(len(locks)), []

    def attempt(one: AnyLock) -> None:
        together.wait()
        try:
            one.acquire("racing")
        except Transient:
            return
        got.append(one)

    threads = [threading.Thread(target=attempt, args=[one]) for one in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got
