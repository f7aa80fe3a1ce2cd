"""An agent that falls silent when it is spoken to, and then answers.

    python barge_in.py

Type a line to say something to it; another line interrupts its answer.  `answer` stands for your
language model, the lines for your speech recognition.  One connection serves the whole talk.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from kazeia_client import AsyncClient, AsyncUtterance, Player


async def answer(question: str) -> AsyncIterator[str]:
    """What the agent says, word by word as a language model writes it."""
    text = f"You said {question}, and there are many things that I could tell you about it."
    for word in text.split(" "):
        yield word + " "
        await asyncio.sleep(0.02)


async def questions() -> AsyncIterator[str]:
    """The lines of standard input."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line.strip()


async def play(utterance: AsyncUtterance, question: str) -> None:
    """Play an answer; returns at its end, or when the session is told to be silent."""
    format = await utterance.started()
    if format is None:  # interrupted before the first sound
        print(f"interrupted: {question}", flush=True)
        return
    print(f"speaking: {question}", flush=True)
    player = await asyncio.to_thread(Player, format)
    try:
        async for pcm in utterance:
            await asyncio.to_thread(player.write, pcm)
    finally:
        if utterance.stats is None:
            player.abort()  # nothing of what the sound card still holds is wanted
        else:
            await asyncio.to_thread(player.close)
    print(f"{'finished' if utterance.stats else 'interrupted'}: {question}", flush=True)


async def main() -> None:
    """Answer each line; a new one interrupts."""
    async with AsyncClient() as client, client.session() as session:
        playing: asyncio.Task[None] | None = None
        async for question in questions():
            if playing is not None:
                await session.cancel()  # silence here and on the server
                await playing
            utterance = await session.speak(answer(question))
            playing = asyncio.create_task(play(utterance, question))
        if playing is not None:
            await playing


if __name__ == "__main__":
    asyncio.run(main())
