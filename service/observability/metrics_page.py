# SPDX-License-Identifier: Apache-2.0
"""The metrics as bytes, rendered when the figures are refreshed: a scrape costs no more than sending them."""

import gzip

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


class MetricsPage:
    """The registry's text as it was at the last ``render``."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._bodies = b"", b""
        self.render()

    def render(self) -> None:
        """Bring the text up to now."""
        text = generate_latest(self._registry)
        self._bodies = text, gzip.compress(text, compresslevel=1, mtime=0)

    def body(self, *, gzipped: bool) -> bytes:
        """The text, or the same gzipped."""
        return self._bodies[gzipped]
