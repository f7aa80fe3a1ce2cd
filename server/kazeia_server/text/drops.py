"""What of a text is not spoken, for the log."""

from __future__ import annotations

import unicodedata

__all__ = ["Drops"]


class Drops:
    """What was left out of one text on its way to the voice, each kind once, in order."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def __str__(self) -> str:
        return ", ".join(self._names)

    def char(self, char: str) -> None:
        """A character."""
        self._names[f"U+{ord(char):04X} {unicodedata.name(char, 'without a name')}"] = None

    def passage(self, name: str) -> None:
        """A stretch of text, such as "a comment"."""
        self._names[name] = None
