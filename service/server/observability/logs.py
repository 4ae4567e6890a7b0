# SPDX-License-Identifier: Apache-2.0
"""The log formats: text for people, or JSON for log collectors, one record per line. No line contains a secret."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from lake.logfields import current_log_fields
from lake.redaction import redact, redact_setting

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
#: loggers whose informational lines describe the library, not the lake
_NOISY_LOGGERS = (
    "py4j",
    "alembic",
    "sqlalchemy",
    "httpx",
    "httpcore",
    "openlineage",
    "opentelemetry",
    "uvicorn",
)
#: APScheduler warns if it skips a tick because the previous one still runs, which is intended here
_SCHEDULER_LOGGER = "apscheduler"


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """The text format: ``2026-01-31T12:00:00.000Z INFO service.server.daemon.process: message``, exceptions below.

    Line breaks in a message are escaped, because names of directories and tables may contain them.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as text."""
        message = "\\n".join(record.getMessage().splitlines())
        text = f"{_timestamp(record)} {record.levelname} {record.name}: {message}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return redact(text)


class JsonFormatter(logging.Formatter):
    """The JSON format: one object per line with time, level, logger, message, the current log fields and ``extra``.

    Every line about the work on a plan has ``plan``, ``table`` and ``epoch``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as a JSON object."""
        entry: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            **current_log_fields(),
        }
        entry |= {key: redact_setting(key, value) for key, value in vars(record).items() if key not in _STANDARD_FIELDS}
        if record.exc_info:
            entry["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(entry, default=lambda value: redact(str(value)))


def configure_logging(level: str = "info", style: str = "text") -> None:
    """Send log lines of ``level`` and above to standard error in ``style`` (text or json).

    Raises ValueError for an unknown level or style.
    """
    formatters: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}
    if style not in formatters:
        raise ValueError(f"log style {style!r} is unknown; use {' or '.join(formatters)}")
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r} is unknown; use debug, info, warning or error")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatters[style]())
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    logging.getLogger(_SCHEDULER_LOGGER).setLevel(logging.ERROR)
