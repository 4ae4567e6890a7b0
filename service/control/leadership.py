# SPDX-License-Identifier: Apache-2.0
"""Leader rows: what only one process may do at a time, held with an expiry by a daemon or for one command."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Protocol

from lake.errors import LakefoldError

logger = logging.getLogger(__name__)

#: scans run and requests are answered under it
SCAN_ROLE = "scan"
#: superseded versions are deleted under it
CLEAN_ROLE = "clean"
#: what silent executors left is withdrawn under it
SWEEP_ROLE = "sweep"
#: messages to the webhook are delivered under it
NOTIFY_ROLE = "notify"

#: how long a role stays taken after a command was killed
_COMMAND_TTL = timedelta(seconds=30)


class LeaderStore(Protocol):
    """The part of the store that elections need."""

    def acquire_leader(self, role: str, holder: str, ttl: timedelta) -> bool:
        """Take or renew ``role`` for ``holder``; False while somebody else's row has not expired."""

    def release_leader(self, role: str, holder: str) -> None:
        """Give ``role`` up if ``holder`` has it."""


class Leadership:
    """The singleton roles one process wants, and those it holds.

    ``holds`` never asks the database: a role counts as held until its time to live has passed on this host's
    monotonic clock since *before* the last renewal was sent, so that a process cut off from the database stops
    acting before its row expires for the others. A role that the process is not ``able`` to do is given up, for
    another process, until it is.
    """

    def __init__(
        self,
        store: LeaderStore,
        holder: str,
        roles: Iterable[str],
        ttl: timedelta,
        can_lead: Callable[[str], bool] = lambda role: True,
    ) -> None:
        self.roles = tuple(roles)
        self._store, self._holder, self._ttl, self._can_lead = store, holder, ttl, can_lead
        self._expires_at: dict[str, float] = {}
        self._last_logged: dict[str, bool] = dict.fromkeys(self.roles, False)
        self._lock = threading.Lock()
        self._released = False

    def is_leader(self, role: str) -> bool:
        """Whether this process may run ``role`` now."""
        return self._expires_at.get(role, 0.0) > time.monotonic() and self._can_lead(role)

    def renew(self) -> None:
        """Take or extend every wanted role. Raises what the store raises; roles not reached keep their expiry."""
        with self._lock:
            if self._released:
                return
            try:
                for role in self.roles:
                    if not self._can_lead(role):
                        if self._expires_at.pop(role, None) is not None:
                            self._store.release_leader(role, self._holder)
                        continue
                    asked = time.monotonic()
                    if self._store.acquire_leader(role, self._holder, self._ttl):
                        self._expires_at[role] = asked + self._ttl.total_seconds()
                    else:
                        self._expires_at.pop(role, None)
            finally:
                self._log_changes()

    def release(self) -> None:
        """Give up every held role for good, so that a successor need not wait for the expiry."""
        with self._lock:
            self._released = True
            held = list(self._expires_at)
            self._expires_at.clear()
            try:
                for role in held:
                    self._store.release_leader(role, self._holder)
            finally:
                self._log_changes()

    def _log_changes(self) -> None:
        for role in self.roles:
            now = self.is_leader(role)
            if now != self._last_logged[role]:
                self._last_logged[role] = now
                logger.info("%s the leader of %s", "now" if now else "no longer", role)


@contextmanager
def leader_lease(store: LeaderStore, role: str, holder: str) -> Iterator[bool]:
    """Hold the leader row ``role`` while the block runs, renewing it; False where a live process has it."""
    if not store.acquire_leader(role, holder, _COMMAND_TTL):
        yield False
        return
    done = threading.Event()

    def renew() -> None:
        while not done.wait(_COMMAND_TTL.total_seconds() / 3):
            with suppress(
                LakefoldError
            ):  # the row has two more thirds to live; what needs the database fails by itself
                store.acquire_leader(role, holder, _COMMAND_TTL)

    renewal = threading.Thread(target=renew, name=f"holding {role}", daemon=True)
    renewal.start()
    try:
        yield True
    finally:
        done.set()
        renewal.join()
        store.release_leader(role, holder)
