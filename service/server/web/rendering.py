# SPDX-License-Identifier: Apache-2.0
"""The rendering of templates, and the static files: both are cached; every string outside a template is escaped."""

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache, lru_cache
from http import HTTPStatus
from importlib.resources import files
from types import SimpleNamespace
from urllib.parse import quote, urlencode, urlsplit

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context as Variables
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, Response

from lake.units import format_bytes, format_duration, format_elapsed
from lake.version import __version__
from service.server.api.context import request_context
from service.server.api.security import WRITE, Caller
from service.server.api.security_headers import PAGE_CONTENT_SECURITY_POLICY
from service.server.web import cells, formatting
from service.text import actor_label, cause_first, format_age, format_percent, process_label, share_of, short_id

#: the cookie with the light or dark theme; it is not secret, and the script sets it
THEME_COOKIE = "lakefold_theme"
#: the positions where a name may break: after a sign, but not inside a number, and anywhere in long words
_BREAKS = re.compile(r"(?<=[_/=])(?=[^_/=])|(?<=\.)(?=[^.\d\s])|(?<=[^\s._/=-]{20})(?=[^\s._/=-])")
#: words of a command that are longer than this may be broken
_LONG_WORD = 40
#: maximum number of cached texts with line breaks: lists repeat names in their rows and at every refresh
_BREAKABLE_CACHE_SIZE = 4096
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class PageContent(SimpleNamespace):
    """The content of a page, ``page`` in its template; a missing field is an error."""


@cache
def static_file(name: str) -> tuple[bytes, str] | None:
    """Return a static file and its media type, or None if there is no such file."""
    names = {entry.name for entry in (files("service.server.web") / "static").iterdir()}
    if name not in names:
        return None
    return (files("service.server.web") / "static" / name).read_bytes(), _TYPES[name.rpartition(".")[2]]


@cache
def asset_url(name: str) -> str:
    """Return the address of a static file, which changes with the content, so that browsers may cache it for ever."""
    found = static_file(name)
    assert found is not None, name
    return f"/static/{name}?v={hashlib.sha256(found[0]).hexdigest()[:12]}"


def table_path(name: str) -> str:
    """Return the address of a table's page."""
    return f"/tables/{quote(name, safe='')}"


def query_path(path: str, query: Mapping[str, str], **changed: str) -> str:
    """Return ``path`` with the fields of ``query``, some of them ``changed``."""
    kept = {key: value for key, value in {**query, **changed}.items() if value}
    return f"{path}?{urlencode(kept)}" if kept else path


def safe_local_path(path: str) -> str:
    """Return ``path`` if it is a local page, else the first page: a sign-in never redirects to another site."""
    parts = urlsplit(path)
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and not parts.netloc and not parts.scheme
    return path if is_local and path.isprintable() else "/"


@pass_context
def _ago(variables: Variables, moment: datetime) -> str:
    return format_age(moment, variables["now"])


@lru_cache(_BREAKABLE_CACHE_SIZE)
def _breakable(name: str) -> Markup:
    """Return a name, or a text with paths, with possible line breaks."""
    return Markup("<wbr>").join(_BREAKS.split(name))


def _command(text: str) -> Markup:
    """Return a command that may break between its words and in long words, but never inside an option."""
    formatting = (
        Markup('<span class="nowrap">{}</span>').format(word)
        if word.startswith("-")
        else _breakable(word)
        if len(word) > _LONG_WORD
        else escape(word)
        for word in text.split(" ")
    )
    return Markup(" ").join(formatting)


@cache
def environment() -> Environment:
    """Return the environment of the templates, with their filters."""
    made = Environment(
        loader=PackageLoader("service.server.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "bytes": format_bytes,
        "count": formatting.format_count,
        "share_of": share_of,
        "browsable": formatting.browsable_url,
        "process_name": process_label,
        "actor_name": actor_label,
        "percent": format_percent,
        "duration": format_duration,
        "elapsed": format_elapsed,
        "ago": _ago,
        "clock": formatting.format_clock,
        "iso": lambda moment: moment.astimezone(UTC).isoformat(timespec="seconds"),
        "short_id": short_id,
        "breakable": _breakable,
        "command": _command,
        "cause_first": cause_first,
        "table_path": table_path,
        "xy": lambda number: f"{number:.1f}".removesuffix(".0"),
    }
    made.globals |= {"asset": asset_url, "cells": cells, "version": __version__}
    return made


def render(
    request: Request,
    template: str,
    page: PageContent | None,
    *,
    section: str = "",
    status: int = 200,
    now: datetime | None = None,
) -> Response:
    """Render ``template`` with ``page``; ``section`` is the current entry of the navigation.

    Callers who may read see a pause of the whole service above the page. Problem pages don't show it, because the
    database may be the problem.
    """
    now = now or datetime.now(UTC)
    caller: Caller | None = getattr(request.state, "caller", None)
    is_problem = status >= HTTPStatus.BAD_REQUEST
    pause = None if is_problem or caller is None else request_context(request).store.service_pause()
    theme = request.cookies.get(THEME_COOKIE)
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    html = (
        environment()
        .get_template(template)
        .render(
            page=page,
            section=section,
            now=now,
            here=here,
            theme=theme if theme in ("light", "dark") else None,
            signed_in_as=(caller.person or caller.name) if caller else None,
            sees_all=caller is None or caller.table_scope.is_unrestricted,
            pause=pause,
            is_problem=is_problem,
            may_write=caller is not None and caller.name is not None and caller.scope == WRITE,
        )
    )
    return HTMLResponse(html, status_code=status, headers={"Content-Security-Policy": PAGE_CONTENT_SECURITY_POLICY})
