# SPDX-License-Identifier: Apache-2.0
"""The headers of every response by which a browser protects its user, and the content security policy of the pages."""

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

#: pages load only lakefold's own files, nothing inline, in no frame: text that is injected into a page can load nothing
PAGE_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_DEFAULTS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


def with_security_headers(send: Send) -> Send:
    """Return ``send`` such that a response gets each of these headers that it does not set itself."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _DEFAULTS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
