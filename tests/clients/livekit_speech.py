"""What the tests of livekit's speech classes share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any


def run(plugin: AbstractAsyncContextManager[Any], use: Callable[[Any], Awaitable[None]]) -> None:
    """Use the speech object of a plug-in, and close it."""

    async def test() -> None:
        async with plugin as tts:
            await use(tts)

    asyncio.run(asyncio.wait_for(test(), 60))


def once() -> Any:
    """Connection options without a second try."""
    from livekit.agents import APIConnectOptions

    return APIConnectOptions(max_retry=0, timeout=10)
