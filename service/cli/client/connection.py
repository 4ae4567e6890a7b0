# SPDX-License-Identifier: Apache-2.0
"""The HTTP connection to one lakefold: token, timeouts, retries, and the service's problems as ``ProblemError``."""

import os
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import httpx

from lake.version import __version__
from service import problems
from service.problems import ExitCode, Problem, ProblemError

TOKEN_VARIABLE = "LAKEFOLD_TOKEN"
#: the pause before each repetition of a call
_RETRY_PAUSES_SECONDS = (0.3, 1.0)
#: a longer ``Retry-After`` is reported as an error instead of waited for
_MAX_RETRY_AFTER_SECONDS = 10.0
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
#: members of every problem document; the other members are facts about the error
_STANDARD_MEMBERS = ("type", "title", "status", "detail", "instance", "exit_code")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_UNAVAILABLE = (502, 503, 504)


class ApiConnection:
    """The connection that calls the HTTP API at ``url`` with the bearer token ``token``. The caller closes it.

    Every method raises ProblemError: with the problem that the service returned, or with the reason why the service
    did not answer. A call is repeated only if it never reached the service, if the service rejected it temporarily
    (429), or if it is ``repeatable``: a second execution does no harm.
    """

    def __init__(self, url: str, token: str | None, transport: httpx.BaseTransport | None = None) -> None:
        parsed = _parse_url(url)
        self.url = str(parsed).rstrip("/")
        self.sends_token_unencrypted = bool(token) and parsed.scheme == "http" and parsed.host not in _LOOPBACK
        self._has_token = bool(token)
        headers = {"User-Agent": f"lakefold/{__version__}", "Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {_check_token(token)}"
        try:
            # Plain HTTP needs no trust store, and loading one takes longer than most answers.
            trusted = True if parsed.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._client = httpx.Client(
                base_url=self.url, headers=headers, timeout=_TIMEOUT, transport=transport, verify=trusted
            )
        except (OSError, ssl.SSLError) as error:
            raise ProblemError(problems.UNREACHABLE, f"SSL_CERT_FILE or SSL_CERT_DIR: {error}") from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the document at ``path``; parameters that are None are omitted."""
        return self.call("GET", path, parameters=parameters, repeatable=True)

    def call(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Make one call and return the document in its response."""
        options: dict[str, Any] = {"params": _without_none(parameters), "headers": dict(headers or {})}
        if body is not None:
            options["json"] = dict(body)
        if timeout_seconds is not None:
            options["timeout"] = httpx.Timeout(timeout_seconds, connect=10.0)
        for pause in (*_RETRY_PAUSES_SECONDS, None):
            try:
                response = self._client.request(method, path, **options)
            except httpx.TransportError as error:
                if pause is None or not _is_retryable(error, repeatable=repeatable):
                    self._raise_unreachable(error)
                time.sleep(pause)
                continue
            delay = _retry_delay(response, pause, repeatable=repeatable)
            if delay is None:
                return self._parse_response(response)
            time.sleep(delay)
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def stream_lines(self, path: str, *, read_seconds: float) -> Iterator[Iterator[str]]:
        """Open the event stream at ``path`` and yield its lines.

        Raises ProblemError if the stream can't be opened. Raises httpx.TransportError if the connection is lost, or if
        the stream sends nothing for ``read_seconds``.
        """
        timeout = httpx.Timeout(read_seconds, connect=10.0)
        request = self._client.build_request("GET", path, headers={"Accept": "text/event-stream"}, timeout=timeout)
        response = self._client.send(request, stream=True)
        try:
            if response.status_code != httpx.codes.OK:
                response.read()
                self._parse_response(response)
            yield response.iter_lines()
        finally:
            response.close()

    def _parse_response(self, response: httpx.Response) -> Any:
        if not response.is_success:
            self._raise_problem(response)
        try:
            return response.json()
        except ValueError as error:
            raise ProblemError(problems.ERROR, self._unexpected_response(response)) from error

    def _raise_problem(self, response: httpx.Response) -> NoReturn:
        if response.is_redirect:
            target = response.headers.get("Location", "elsewhere")
            raise ProblemError(problems.USAGE, f"{self.url} redirects to {target}; set --url to that address")
        try:
            document = response.json()
            kind, detail = str(document["type"]), str(document["detail"])
        except (ValueError, KeyError, TypeError) as error:
            gone = response.status_code in _UNAVAILABLE
            raise ProblemError(
                problems.UNREACHABLE if gone else problems.ERROR, self._unexpected_response(response), url=self.url
            ) from error
        if response.status_code == httpx.codes.UNAUTHORIZED and not self._has_token:
            detail = (
                f"{self.url} requires a token, but {TOKEN_VARIABLE} is not set; "
                "create a token with `lakefold tokens add` on the service's host"
            )
        facts = {key: value for key, value in document.items() if key not in _STANDARD_MEMBERS}
        raise ProblemError(_parse_problem(kind, response.status_code, document), detail, **facts)

    def _unexpected_response(self, response: httpx.Response) -> str:
        return (
            f"{response.request.url.copy_with(query=None)}: the response {response.status_code} "
            f"{response.reason_phrase} is not from lakefold; check --url"
        )

    def _raise_unreachable(self, error: httpx.TransportError) -> NoReturn:
        raise ProblemError(
            problems.UNREACHABLE, f"{self.url}: {describe_transport_error(error)}", url=self.url
        ) from error


def token_from_environment() -> str | None:
    """Return the token of ``LAKEFOLD_TOKEN``, or None if the variable is unset or empty."""
    return os.environ.get(TOKEN_VARIABLE, "").strip() or None


def describe_transport_error(error: httpx.TransportError) -> str:
    """Describe in a few words why the service did not answer."""
    tls = _tls_error(error)
    if isinstance(tls, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {tls.verify_message}; set SSL_CERT_FILE to trust another authority"
    if tls is not None:
        return f"the TLS handshake failed: {tls.reason or tls}"
    if isinstance(error, httpx.ConnectTimeout):
        return "no connection within 10 s"
    if isinstance(error, httpx.TimeoutException):
        return "it did not answer in time"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"can't connect: {text}" if isinstance(error, httpx.ConnectError) else f"the connection was lost: {text}"


def _is_retryable(error: httpx.TransportError, *, repeatable: bool) -> bool:
    """Return True if the call never reached the service, or if it is ``repeatable`` and did not time out.

    A TLS error is never retryable.
    """
    if isinstance(error, httpx.ConnectError):
        return _tls_error(error) is None
    return repeatable and not isinstance(error, httpx.TimeoutException)


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _retry_delay(response: httpx.Response, pause: float | None, *, repeatable: bool) -> float | None:
    """Return the seconds until the call is repeated, or None if this response is final."""
    is_throttled = response.status_code == httpx.codes.TOO_MANY_REQUESTS
    if pause is None or not (is_throttled or (repeatable and response.status_code in _UNAVAILABLE)):
        return None
    requested = response.headers.get("Retry-After", "")
    seconds = float(requested) if requested.isdecimal() else pause
    return seconds if seconds <= _MAX_RETRY_AFTER_SECONDS else None


def _parse_problem(kind: str, status: int, document: Mapping[str, Any]) -> Problem:
    """Return the problem that ``document`` describes.

    The exit code of a ``kind`` that this release does not define is taken from the document.
    """
    slug = kind.rpartition("#")[2]
    known = next((problem for problem in problems.PROBLEMS if problem.slug == slug), None)
    if known is not None:
        return known
    try:
        code = ExitCode(document["exit_code"])
    except (KeyError, ValueError):
        code = ExitCode.ERROR
    return Problem(slug, str(document.get("title", "")), code, status)


def _without_none(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (parameters or {}).items() if value is not None}


def _parse_url(url: str) -> httpx.URL:
    """Parse the address of a service. Raises ProblemError for an address that is not valid.

    An address with a user name or password is refused. The message does not repeat the address, which contains a
    secret.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ProblemError(problems.USAGE, f"--url {url!r}: {error}") from error
    if parsed.userinfo:
        raise ProblemError(
            problems.USAGE, f"--url contains a user name or password; set {TOKEN_VARIABLE} to the token instead"
        )
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ProblemError(
            problems.USAGE, f"--url {url!r} is not http://HOST or https://HOST, such as http://localhost:9464"
        )
    if parsed.query or parsed.fragment:
        raise ProblemError(problems.USAGE, f"--url {url!r} has a query or a fragment; give only the service's address")
    return parsed


def _check_token(token: str) -> str:
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ProblemError(problems.USAGE, f"{TOKEN_VARIABLE} has a space or a character that is not printable ASCII")
    return token
