"""A text that is being written, maybe before there is an utterance that takes it."""

from __future__ import annotations

import asyncio

from kazeia_server.errors import TextTimeout, TextTooLong
from kazeia_server.synthesis.utterance import Utterance
from kazeia_server.text.segment import has_content
from kazeia_server.waiting import within

__all__ = ["Writing"]


class Writing:
    """Keeps what is written until an utterance takes text, and passes it on afterwards."""

    def __init__(self, max_chars: int) -> None:
        self.complete = asyncio.Event()
        self._max_chars = max_chars
        self._n_chars = 0
        self._early: list[str | None] = []  # None: a flush
        self._visible = False  # something of it is
        self._utterance: Utterance | None = None
        self._changed = asyncio.Event()

    def push(self, text: str) -> None:
        """More text, as it is.

        Raises TextTooLong.
        """
        if not text:  # costs nothing, so that no number of them costs anything
            return
        self._n_chars += len(text)
        if self._n_chars > self._max_chars:
            raise TextTooLong(
                f"the text has more than {self._max_chars} characters, as many as are accepted",
                param="text",
            )
        if self._utterance is not None:
            self._utterance.push_text(text)
        else:
            self._early.append(text)
            self._visible = self._visible or has_content(text)
        self._changed.set()

    def flush(self) -> None:
        """What has been written is to be spoken; what follows begins a new piece."""
        if self._utterance is not None:
            self._utterance.flush_text()
        else:
            self._early.append(None)
        self._changed.set()

    def finish(self) -> None:
        """The text is complete."""
        self.complete.set()
        self._changed.set()
        if self._utterance is not None:
            self._utterance.finish_text()

    def attach(self, utterance: Utterance) -> None:
        """Give the text to `utterance`, what comes later as it comes."""
        for text in self._early:
            if text is None:
                utterance.flush_text()
            else:
                utterance.push_text(text)
        self._early = []
        if self.complete.is_set():
            utterance.finish_text()
        self._utterance = utterance

    async def visible(self) -> bool:
        """Wait for visible text; False when the text ends without any."""
        while not (self._visible or self.complete.is_set()):
            self._changed.clear()
            await self._changed.wait()
        return self._visible

    async def whole(self, patience_s: float) -> str:
        """The text, once it is complete.

        Raises TextTimeout when nothing more of it came for so long.
        """
        while not self.complete.is_set():
            self._changed.clear()
            if not await within(self._changed.wait(), patience_s):
                raise TextTimeout(
                    f"no text came for {patience_s:g} s: expected more text, or its end",
                    param="text",
                )
        return "".join(text for text in self._early if text is not None)
