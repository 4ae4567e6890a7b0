# SPDX-License-Identifier: Apache-2.0
"""Being the one process in a role for the length of one command."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.store import Store

#: how long the role stays taken after a command was killed
_TTL = timedelta(seconds=30)


@contextmanager
def holding(store: "Store", role: str, holder: str) -> Iterator[bool]:
    """Hold the leader row ``role`` while the block runs, renewing it; False where a live process has it."""
    from service.store import StoreError

    if not store.acquire_leader(role, holder, _TTL):
        yield False
        return
    done = threading.Event()

    def renew() -> None:
        while not done.wait(_TTL.total_seconds() / 3):
            with suppress(StoreError):  # the row has two more thirds to live; what needs the database fails by itself
                store.acquire_leader(role, holder, _TTL)

    renewing = threading.Thread(target=renew, name=f"holding {role}", daemon=True)
    renewing.start()
    try:
        yield True
    finally:
        done.set()
        renewing.join()
        store.release_leader(role, holder)
