# SPDX-License-Identifier: Apache-2.0
"""API tokens and their cache: a check costs no query, and a token revoked elsewhere is refused within seconds."""

import hashlib
import secrets
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.control.store.tokens import Tokens
    from service.control.store.views import Bearer

#: the time for which the tokens are cached
_CACHE_SECONDS = 3.0
#: the shortest interval between two records of tokens' last use
_USE_RECORDING_SECONDS = 60.0
#: the prefix by which people and secret scanners recognize a token
_PREFIX = "lakefold_"


def new_token() -> str:
    """Create a token of 256 random bits."""
    return _PREFIX + secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    """Return the hexadecimal SHA-256 of a token, the form in which it is stored.

    A slow hash is not needed because a token is random and can't be guessed.
    """
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class TokenCache:
    """The cache of the tokens in force, read again every few seconds. Thread-safe."""

    def __init__(self, store: "Tokens") -> None:
        self._store = store
        self._lock = threading.Lock()
        self._bearers: dict[str, Bearer] = {}
        self._read_at = self._uses_recorded_at = float("-inf")
        self._used_names: set[str] = set()

    @property
    def is_fresh(self) -> bool:
        """True if ``find`` needs no query now."""
        return time.monotonic() - self._read_at < _CACHE_SECONDS

    def find(self, token: str) -> "Bearer | None":
        """Return the bearer of a token in force, else None. Raises StoreError.

        The token is looked up by its hash, so that the duration reveals nothing about other tokens.
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
        """Return True if there is a token in force. Raises StoreError."""
        return bool(self._store.tokens_in_force())

    def _read(self) -> None:
        began = time.monotonic()
        if self._used_names and began - self._uses_recorded_at >= _USE_RECORDING_SECONDS:
            self._store.record_token_use(self._used_names)
            self._used_names, self._uses_recorded_at = set(), began
        self._bearers = self._store.tokens_in_force()
        self._read_at = began
