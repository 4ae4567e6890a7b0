# SPDX-License-Identifier: Apache-2.0
"""Leader rows: roles that only one process may have at a time, held with an expiry by a daemon or by one command."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

from lake.renewal import Renewer

logger = logging.getLogger(__name__)

#: the leader runs scans and answers requests
SCAN_ROLE = "scan"
#: the leader deletes superseded versions
CLEAN_ROLE = "clean"
#: the leader withdraws uncommitted work of ended plans, and checks previous locations of relocated partitions
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

    ``is_leader`` never queries the database: a role counts as held while its ``Renewer`` is certain (``lake.renewal``).
    So a process without a connection to the database stops acting before its row expires for the other processes. The
    process gives up a role while ``can_lead`` is False for it.
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
        self._held: dict[str, Renewer] = {}
        self._last_logged: dict[str, bool] = dict.fromkeys(self.roles, False)
        self._lock = threading.Lock()
        self._released = False

    def is_leader(self, role: str) -> bool:
        """Return True if this process may run ``role`` now."""
        held = self._held.get(role)
        return held is not None and held.is_certain and self._can_lead(role)

    def renew(self) -> None:
        """Take or extend every wanted role.

        Raises the store's errors; after an error the remaining roles keep their expiry.
        """
        with self._lock:
            if self._released:
                return
            try:
                for role in self.roles:
                    self._renew_role(role)
            finally:
                self._log_changes()

    def _renew_role(self, role: str) -> None:
        if not self._can_lead(role):
            if self._held.pop(role, None) is not None:
                self._store.release_leader(role, self._holder)
            return
        if role not in self._held:
            self._held[role] = _role_renewer(self._store, role, self._holder, self._ttl)
        if self._held[role].renew_now() is not None:
            del self._held[role]  # the next round takes the role, if it is free, with a new renewer

    def release(self) -> None:
        """Give up for good every role that is or may be held, so that a successor need not wait for the expiry."""
        with self._lock:
            self._released = True
            held = list(self._held)
            self._held.clear()
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


def _role_renewer(store: LeaderStore, role: str, holder: str, ttl: timedelta) -> Renewer:
    """Return the renewer of a leader row; its first request takes the row."""

    def acquire() -> str | None:
        return None if store.acquire_leader(role, holder, ttl) else "another process has it"

    return Renewer(f"the role {role}", acquire, interval=ttl / 3, validity=ttl)


@contextmanager
def leader_lease(store: LeaderStore, role: str, holder: str) -> Iterator[bool]:
    """Hold the leader row ``role`` while the block runs, renewing it; yields False if a live process has it.

    The block is not stopped if the row is lost: roles only save work, and correctness does not depend on them.
    """
    renewer = _role_renewer(store, role, holder, _COMMAND_TTL)
    if renewer.renew_now() is not None:
        yield False
        return
    try:
        with renewer:
            yield True
    finally:
        store.release_leader(role, holder)
