"""The last step of the clean-up: characters, white space and runs of marks."""

from __future__ import annotations

import unicodedata

from kazeia_server.text.characters import (
    CLAUSE_MARKS,
    CLOSERS,
    END_MARKS,
    is_dropped,
    is_mark,
    is_wide,
)
from kazeia_server.text.drops import Drops

__all__ = ["SpeechWriter"]

_MOST_ALIKE = 3  # of one punctuation mark, or of end marks, in a row
_MOST_MARKS = 4  # combining marks on one character; no living orthography needs more
_CLOSED = frozenset(END_MARKS + CLAUSE_MARKS)


class SpeechWriter:
    """Collects clean text, and in `drops` what it leaves out.

    White space is single spaces and at most two line breaks; none at the start.
    """

    def __init__(self, drops: Drops) -> None:
        self._drops = drops
        self._parts: list[str] = []
        self._last = ""  # last character written
        self._ink = ""  # last one in the line that is neither space nor closing quote or bracket
        self._alike = 0  # how many punctuation marks of a kind stand last
        self._marks = 0  # how many combining marks stand last
        self._breaks = 0  # how many line breaks stand last
        self._gap = False  # something between the last character and the next was dropped
        self._space = False  # a space to be written before the next character
        self._cell = False  # the same for a comma
        self.holds_spaces = False  # whether a space waits for what follows it
        self._line_open = False  # something visible since the last line break

    def take(self) -> str:
        """What was written since the last call."""
        text = "".join(self._parts)
        self._parts.clear()
        return text

    def word(self, text: str) -> None:
        """Letters and digits that need no inspection."""
        self._open(text[0])
        self._put(text)
        self._alike = self._marks = 0

    def char(self, char: str) -> None:
        """Any character."""
        if char.isspace():
            self.space()
        elif is_dropped(char):
            self._drops.char(char)
            if unicodedata.category(char)[0] == "S":
                self.gap()
        elif is_mark(char):
            if self._last.strip() and self._marks < _MOST_MARKS:
                self._marks += 1
                self._parts.append(char)
            else:
                self._drops.char(char)
        elif char.isalnum():
            if "\U0001d400" <= char <= "\U0001d7ff":  # letters in mathematical dress
                char = unicodedata.normalize("NFKC", char)
            self.word(char)
        else:
            self._punctuation(char)

    def joiner(self, char: str) -> None:
        """A zero-width joiner or non-joiner that the letters around it need."""
        self._parts.append(char)

    def space(self) -> None:
        """White space within a line."""
        if self._last in ("", " ", "\n"):
            return
        if self.holds_spaces:
            self._space = True
        else:
            self._put(" ")

    def gap(self) -> None:
        """Something was dropped that kept words apart."""
        self._gap = True

    def cell(self) -> None:
        """The next cell of a table row begins."""
        self._cell = self._line_open

    def close_line(self) -> None:
        """The line is a sentence of its own: end it with a full stop if no mark does."""
        if self._ink and self._ink not in _CLOSED:
            self._put("。" if is_wide(self._ink) and not "가" <= self._ink <= "힣" else ".")
        self._forget()

    def end_block(self, breaks: int) -> None:
        """Close the line and break it; `breaks` 2 ends the paragraph."""
        if self._last == " " and self._ink and self._ink not in _CLOSED:
            breaks = 2  # too late for a mark
            self._forget()
        self.close_line()
        self.line_break(breaks)

    def line_break(self, count: int) -> None:
        """End the line; with `count` 2 the paragraph."""
        self._forget()
        if self._last == "":
            return
        if count > self._breaks:
            self._parts.append("\n" * (count - self._breaks))
            self._last = "\n"
            self._breaks = count

    def _forget(self) -> None:
        self._space = self._cell = self._gap = self._line_open = False
        self._ink = ""
        self._alike = self._marks = 0

    def _open(self, following: str) -> None:
        """Write what stands between the last character and `following`."""
        if self._cell and self._ink in _CLOSED:
            if self._last != " ":
                self._put(" ")
        elif self._cell:
            self._put(", ")
        elif self._space or (self._gap and _needs_space(self._last) and _needs_space(following)):
            self._put(" ")
        self._gap = self._space = self._cell = False

    def _punctuation(self, char: str) -> None:
        alike = char == self._last or (char in END_MARKS and self._last in END_MARKS and self._last)
        count = self._alike + 1 if alike and self._alike else 1
        self._marks = 0
        if count > _MOST_ALIKE:
            self._drops.char(char)
            return
        self._open(char)
        self._put(char)
        self._alike = count

    def _put(self, text: str) -> None:
        self._parts.append(text)
        self._last = text[-1]
        self._breaks = 0
        if self._last != " ":
            self._line_open = True
            if self._last not in CLOSERS:
                self._ink = self._last


def _needs_space(char: str) -> bool:
    """Whether a space parts the character from the word beside it."""
    return char.isalnum() and not is_wide(char)
