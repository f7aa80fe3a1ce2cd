"""Console logging of the server."""

from __future__ import annotations

import logging
import sys

__all__ = ["LEVELS", "configure_logging", "logger"]

LEVELS = ("debug", "info", "warning", "error")

logger = logging.getLogger("kazeia_server")


def configure_logging(level: str) -> None:
    """Send this package's and uvicorn's records to standard error, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    for name in ("kazeia_server", "uvicorn"):
        target = logging.getLogger(name)
        target.handlers = [handler]
        target.propagate = False
        target.setLevel(level.upper())
    # uvicorn's "[accepted]" and "connection open" lines say nothing an operator acts on.
    logging.getLogger("uvicorn.error").addFilter(_not_chatter)


def _not_chatter(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    return not (message.startswith("connection ") or '"WebSocket ' in message)
