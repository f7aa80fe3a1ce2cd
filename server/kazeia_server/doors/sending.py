"""Sending to a WebSocket whose client may have left, or may not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from kazeia_server.logging_ import logger
from kazeia_server.waiting import watchdog

__all__ = ["ClientGone", "Sender"]


class ClientGone(Exception):
    """Nothing can be sent any more."""


class Sender:
    """Messages leave in the order they were given; `stalled` is called when one takes too long."""

    def __init__(self, websocket: WebSocket, timeout_s: float, stalled: Callable[[], None]) -> None:
        self._websocket = websocket
        self._timeout_s = timeout_s
        self._stalled = stalled
        self._turn = asyncio.Lock()  # fair

    async def message(self, message: dict[str, Any]) -> None:
        """A JSON text frame.

        Raises ClientGone.
        """
        text = json.dumps(message, ensure_ascii=False, allow_nan=False)
        await self._send({"type": "websocket.send", "text": text})

    async def audio(self, data: bytes) -> None:
        """A binary frame.

        Raises ClientGone.
        """
        await self._send({"type": "websocket.send", "bytes": data})

    async def close(self, code: int, reason: str) -> None:
        """The close frame.

        Raises ClientGone.
        """
        await self._send({"type": "websocket.close", "code": code, "reason": reason})

    async def _send(self, message: dict[str, Any]) -> None:
        async with self._turn:
            try:
                with watchdog(self._timeout_s, self._give_up):
                    await self._websocket.send(message)
            except (WebSocketDisconnect, RuntimeError) as error:  # RuntimeError: already closed
                raise ClientGone from error

    def _give_up(self) -> None:
        logger.warning("a client took no data for %.0f s; connection dropped", self._timeout_s)
        self._stalled()
