# SPDX-License-Identifier: Apache-2.0
"""Tokens in memory: a check costs no query, and a token revoked elsewhere is refused within seconds."""

import hashlib
import secrets
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.control.store.tokens import Tokens
    from service.control.store.views import Bearer

#: for so long tokens are not asked for again
_CACHE_SECONDS = 3.0
#: how often the last use of a token is written down at most
_USE_RECORDING_SECONDS = 60.0
#: what a token begins with, so that people and scanners of secrets recognise one
_PREFIX = "lakefold_"


def new_token() -> str:
    """A token of 256 random bits."""
    return _PREFIX + secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    """How a token is kept: its hexadecimal SHA-256. Nothing slower is needed for what nobody can guess."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class TokenCache:
    """The tokens in force, read again when they are seconds old. Thread-safe."""

    def __init__(self, store: "Tokens") -> None:
        self._store = store
        self._lock = threading.Lock()
        self._bearers: dict[str, Bearer] = {}
        self._read_at = self._uses_recorded_at = float("-inf")
        self._used_names: set[str] = set()

    @property
    def is_fresh(self) -> bool:
        """Whether ``find`` needs no query now."""
        return time.monotonic() - self._read_at < _CACHE_SECONDS

    def find(self, token: str) -> "Bearer | None":
        """Who has a token in force, else None. Raises what the store raises.

        Every token is hashed and looked up by its hash, so that the time this takes says nothing about other tokens.
        """
        hashed = token_digest(token)
        with self._lock:
            if not self.is_fresh:
                self._read()
            found = self._bearers.get(hashed)
            if found is not None:
                self._used_names.add(found.name)
            return found

    def has_tokens(self) -> bool:
        """Whether there is a token. Raises what the store raises."""
        return bool(self._store.tokens_in_force())

    def _read(self) -> None:
        began = time.monotonic()
        if self._used_names and began - self._uses_recorded_at >= _USE_RECORDING_SECONDS:
            self._store.record_token_use(self._used_names)
            self._used_names, self._uses_recorded_at = set(), began
        self._bearers = self._store.tokens_in_force()
        self._read_at = began
