"""The server's log: one line a record, for people or as JSON.

Nothing at level info or above holds what is spoken, and nothing at any level holds an API key:
the queries of addresses are cut off, and the frames of WebSockets are never logged.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any, Literal

__all__ = ["configure_logging", "current_request_id", "logger"]

logger = logging.getLogger("kazeia_server")

# Of the request or connection in whose task a record is made.
current_request_id: ContextVar[str | None] = ContextVar("kazeia_request_id", default=None)

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


def configure_logging(level: str, style: Literal["console", "json"] = "console") -> None:
    """Send this package's and uvicorn's records to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if style == "json" else _ConsoleFormatter())
    for name in ("kazeia_server", "uvicorn"):
        target = logging.getLogger(name)
        target.handlers = [handler]
        target.propagate = False
        target.setLevel(level.upper())
    # At debug the library below uvicorn logs every frame, hence texts and keys.
    uvicorn_errors = logging.getLogger("uvicorn.error")
    uvicorn_errors.setLevel(max(logging.INFO, getattr(logging, level.upper())))
    # uvicorn's "[accepted]" and "connection open" lines say nothing an operator acts on.
    uvicorn_errors.addFilter(_not_chatter)
    access = logging.getLogger("uvicorn.access")
    access.handlers = []
    access.propagate = True
    access.addFilter(_without_query)


# What a client sent must not begin a line of its own, nor move the terminal's cursor.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    code: f"\\u{code:04x}"
    for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


class _ConsoleFormatter(logging.Formatter):
    """`time LEVEL message [request id]`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record).translate(_VISIBLE)
        request_id = current_request_id.get()
        return line if request_id is None else f"{line} [{request_id}]"


class _JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, request_id, and what `extra` holds."""

    def format(self, record: logging.LogRecord) -> str:
        milliseconds = int(record.msecs)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{stamp}.{milliseconds:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = current_request_id.get()
        if request_id is not None:
            entry["request_id"] = request_id
        for name, value in vars(record).items():
            if name not in _STANDARD and name not in entry:
                entry[name] = value
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _not_chatter(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    # Answers are left incomplete on purpose, for lack of another way to tell that speech broke
    # off; why is said in a line of this package's own.
    left = message.startswith("ASGI callable returned without completing")
    return not (left or message.startswith("connection ") or '"WebSocket ' in message)


def _without_query(record: logging.LogRecord) -> bool:
    """uvicorn's access line holds the address with its query, in which a key may stand."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            value.partition("?")[0] if isinstance(value, str) else value for value in record.args
        )
    return True
