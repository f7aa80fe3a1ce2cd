"""Reading text that is still arriving."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Lookahead", "NeedMoreText"]


class NeedMoreText(Exception):
    """What follows the text at hand decides, and it has not arrived yet."""


class Lookahead:
    """Bounded looks into a text whose rest may still be coming.

    A look beyond the end raises NeedMoreText unless the text is `final`.  A decision taken with
    nothing but these looks therefore stays the same whatever arrives later, which is what makes
    the result independent of how the text was cut on its way.
    """

    __slots__ = ("final", "size", "text")

    def __init__(self, text: str, *, final: bool) -> None:
        self.text = text
        self.size = len(text)
        self.final = final

    def read(self, step: Callable[[Lookahead, int], int]) -> str:
        """Take steps from place to place as far as the text decides; what is left of it.

        `step` is given a place and returns the next; every look ahead of it comes before its first
        change.
        """
        position = 0
        with suppress(NeedMoreText):
            while position < self.size:
                position = step(self, position)
        return self.text[position:]

    def at(self, index: int) -> str:
        """The character at `index`; "" behind the end of a final text."""
        if index < self.size:
            return self.text[index]
        if self.final:
            return ""
        raise NeedMoreText

    def run(self, index: int, char: str, most: int) -> int:
        """How many times `char` stands from `index` on, counted up to `most`."""
        count = 0
        while count < most and self.at(index + count) == char:
            count += 1
        return count

    def find(self, pattern: re.Pattern[str], index: int, most: int) -> int:
        """Where in the next `most` characters `pattern`, which matches one character, first does.

        The end of a final text counts as a match; -1 if there is none.
        """
        stop = index + most
        match = pattern.search(self.text, index, min(stop, self.size))
        if match:
            return match.start()
        if stop <= self.size:
            return -1
        return self.size if self.at(self.size) == "" else -1

    def starts(self, index: int, word: str) -> bool:
        """Whether the lower-case `word` stands at `index` in any case."""
        here = self.text[index : index + len(word)].lower()
        if len(here) == len(word):
            return here == word
        if not word.startswith(here):
            return False
        self.at(self.size)
        return False
