# SPDX-License-Identifier: Apache-2.0
"""Leader rows: roles that only one process may have at a time, held with an expiry by a daemon or by one command."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Protocol

from lake.errors import LakefoldError

logger = logging.getLogger(__name__)

#: the leader runs scans and answers requests
SCAN_ROLE = "scan"
#: the leader deletes superseded versions
CLEAN_ROLE = "clean"
#: the leader withdraws the uncommitted work of silent executors
SWEEP_ROLE = "sweep"
#: the leader delivers messages to the webhook
NOTIFY_ROLE = "notify"

#: time after which the role of a killed command is free
_COMMAND_TTL = timedelta(seconds=30)


class LeaderStore(Protocol):
    """The part of the store that elections need."""

    def acquire_leader(self, role: str, holder: str, ttl: timedelta) -> bool:
        """Take or renew ``role`` for ``holder``; False while another holder's row has not expired."""

    def release_leader(self, role: str, holder: str) -> None:
        """Give up ``role`` if ``holder`` has it."""


class Leadership:
    """The singleton roles that one process tries to hold, and the roles that it holds.

    ``is_leader`` never queries the database. A role counts as held until its time to live has passed on this host's
    monotonic clock, counted from *before* the last renewal was sent. So a process without a connection to the database
    stops acting before its row expires for the other processes. A role for which ``can_lead`` is False is given up to
    another process until it is True.
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
        """Return True if this process may run ``role`` now."""
        return self._expires_at.get(role, 0.0) > time.monotonic() and self._can_lead(role)

    def renew(self) -> None:
        """Take or extend every wanted role. Raises the store's errors; roles not reached keep their expiry."""
        with self._lock:
            if self._released:
                return
            try:
                for role in self.roles:
                    if not self._can_lead(role):
                        if self._expires_at.pop(role, None) is not None:
                            self._store.release_leader(role, self._holder)
                        continue
                    started = time.monotonic()
                    if self._store.acquire_leader(role, self._holder, self._ttl):
                        self._expires_at[role] = started + self._ttl.total_seconds()
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
    """Hold the leader row ``role`` while the block runs, renewing it; yields False if a live process has it."""
    if not store.acquire_leader(role, holder, _COMMAND_TTL):
        yield False
        return
    done = threading.Event()

    def renew() -> None:
        while not done.wait(_COMMAND_TTL.total_seconds() / 3):
            # The row is valid for two thirds of its time yet; the block's own use of the database fails by itself.
            with suppress(LakefoldError):
                store.acquire_leader(role, holder, _COMMAND_TTL)

    renewal = threading.Thread(target=renew, name=f"holding {role}", daemon=True)
    renewal.start()
    try:
        yield True
    finally:
        done.set()
        renewal.join()
        store.release_leader(role, holder)
