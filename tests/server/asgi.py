"""Calls an ASGI application without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message


@dataclass
class Answer:
    """What an application sent."""

    messages: list[Message] = field(default_factory=list)

    @property
    def start(self) -> Message:
        return self.messages[0]

    @property
    def status(self) -> int:
        return int(self.start["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.start.get("headers", ())}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


def scope(
    kind: str, method: str, path: str, query: str, headers: Mapping[str, str], root: str = ""
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": kind,
        "path": path,
        "root_path": root,
        "query_string": query.encode(),
        "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()],
        "extensions": {"websocket.http.response": {}} if kind == "websocket" else {},
    }
    if kind == "http":
        made["method"] = method
    return made


async def acall(
    app: ASGIApp,
    method: str = "GET",
    path: str = "/",
    *,
    kind: str = "http",
    query: str = "",
    headers: Mapping[str, str] | None = None,
    root: str = "",
    incoming: list[Message] | None = None,
) -> Answer:
    """One request; `incoming` are the messages the client sends, after which it says no more."""
    answer = Answer()
    first = {"type": "http.request"} if kind == "http" else {"type": "websocket.connect"}
    waiting = [first] if incoming is None else list(incoming)

    async def receive() -> Message:
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        answer.messages.append(message)

    await app(scope(kind, method, path, query, headers or {}, root), receive, send)
    return answer


def call(app: ASGIApp, method: str = "GET", path: str = "/", **options: Any) -> Answer:
    """`acall` in a loop of its own."""
    return asyncio.run(acall(app, method, path, **options))
