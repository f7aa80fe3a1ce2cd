"""Stretches of text that are not spoken and dropped while they arrive, however long they are."""

from __future__ import annotations

import re
from typing import Protocol

from kazeia_server.text.characters import is_wide
from kazeia_server.text.lookahead import Lookahead, NeedMoreText

__all__ = [
    "MAX_FENCE",
    "MAX_INDENT",
    "CommentSkip",
    "DestinationSkip",
    "FenceSkip",
    "RawSkip",
    "RunSkip",
    "Skip",
    "TagSkip",
    "UrlSkip",
]

MAX_FENCE = 64  # marks of a fence that count
MAX_INDENT = 40  # columns before a line that count
_MAX_URL_MARKS = 16
_LINE_END = re.compile(r"[\n\r]")
_TAG_STOP = re.compile(r"[>\n]")
# Within an address: what it ends at, what ends it unless more of it follows, and all the rest.
_URL_STOP = frozenset('<>"`|\\^{}[]“”‘’«»)')
_URL_MAYBE = frozenset(".,;:!?'*_~")
_URL_PLAIN = re.compile(r"[A-Za-z0-9/=&%#@+$\-]+")


class Skip(Protocol):
    """A stretch being skipped."""

    done: bool  # the stretch is over

    def read(self, text: Lookahead, position: int) -> int:
        """Where to read on; looks ahead before it changes anything."""
        ...


class RunSkip:
    """The rest of a run of one character."""

    def __init__(self, char: str) -> None:
        self.done = False
        self._char = char

    def read(self, text: Lookahead, position: int) -> int:
        """As Skip."""
        while position < text.size and text.text[position] == self._char:
            position += 1
        self.done = position < text.size
        return position


class FenceSkip:
    """A fenced code block, from behind its opening fence to behind its closing one."""

    def __init__(self, char: str, count: int) -> None:
        self.done = False
        self._char = char
        self._count = count
        self._inside_line = True

    def read(self, text: Lookahead, position: int) -> int:
        """As Skip."""
        if self._inside_line:
            end = _LINE_END.search(text.text, position)
            if end is None:
                return text.size
            self._inside_line = False
            return end.end()
        start = position
        while start < position + MAX_INDENT and text.at(start) in (" ", "\t", ">"):
            start += 1
        count = text.run(start, self._char, MAX_FENCE)
        following = text.at(start + count)
        if count >= self._count and (following == "" or following.isspace()):
            self.done = True
            return start + count
        self._inside_line = True
        return position


class TagSkip:
    """The rest of a tag too long to be looked at: up to ">", or an empty line."""

    def __init__(self) -> None:
        self.done = False

    def read(self, text: Lookahead, position: int) -> int:
        """As Skip."""
        stop = _TAG_STOP.search(text.text, position)
        if stop is None:
            return text.size
        if stop[0] == ">":
            self.done = True
        elif text.at(stop.end()) in ("", "\n", "\r"):
            self.done = True
            return stop.start()
        return stop.end()


class CommentSkip:
    """The rest of a comment."""

    def __init__(self) -> None:
        self.done = False

    def read(self, text: Lookahead, position: int) -> int:
        """As Skip."""
        end = text.text.find("-->", position)
        if end < 0:
            return _all_but(2, text, position)
        self.done = True
        return end + 3


class RawSkip:
    """An element skipped with its content, up to its closing tag."""

    def __init__(self, name: str) -> None:
        self.done = False
        self._end = re.compile(re.escape(f"</{name}"), re.IGNORECASE | re.ASCII)
        self._length = len(name) + 2
        self._tag: TagSkip | None = None

    def read(self, text: Lookahead, position: int) -> int:
        """As Skip."""
        if self._tag is not None:
            position = self._tag.read(text, position)
            self.done = self._tag.done
            return position
        end = self._end.search(text.text, position)
        if end is None:
            return _all_but(self._length - 1, text, position)
        self._tag = TagSkip()
        return end.end()


class DestinationSkip:
    """The destination of a link too long to be looked at: up to its ")", or white space."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0

    def read(self, text: Lookahead, position: int) -> int:
        """As Skip."""
        char = text.text[position]
        if char.isspace():
            self.done = True
            return position
        if char == "(":
            self._depth += 1
        elif char == ")":
            self.done = self._depth == 0
            self._depth -= 1
        return position + 1


class UrlSkip:
    """What follows the host of a web address; marks at its end belong to the sentence."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0

    def read(self, text: Lookahead, position: int) -> int:
        """As Skip."""
        plain = _URL_PLAIN.match(text.text, position)
        if plain:
            return plain.end()
        char = text.text[position]
        if char == "(":
            self._depth += 1
        elif char == ")" and self._depth:
            self._depth -= 1
        elif char in _URL_MAYBE:
            index = position
            while index < position + _MAX_URL_MARKS and text.at(index) in _URL_MAYBE:
                index += 1
            self.done = _ends_url(text.at(index))
        else:
            self.done = _ends_url(char)
        return position if self.done else position + 1


def _ends_url(char: str) -> bool:
    return char == "" or char.isspace() or char in _URL_STOP or is_wide(char)


def _all_but(count: int, text: Lookahead, position: int) -> int:
    """Skip what is there except the last characters, which may begin the end."""
    stop = text.size if text.final else text.size - count
    if stop <= position:
        raise NeedMoreText
    return stop
