"""Signs and numbers in words, in a text that is still arriving."""

from __future__ import annotations

import re
from functools import cache

from kazeia_server.text.drops import Drops
from kazeia_server.text.lookahead import Lookahead
from kazeia_server.text.spoken.english import ENGLISH
from kazeia_server.text.spoken.french import FRENCH
from kazeia_server.text.spoken.rules import SignRules

__all__ = ["SignReader"]

_MAX_WORD = 128
_MAX_PASSAGE = 256  # more than one number, its unit and an address have
_SPACE = re.compile(r"\s")
_WITHIN = " \u00a0\u202f\u2009"  # what parts the words of a passage


@cache
def _rules(language: str) -> SignRules:
    return SignRules(FRENCH if language == "french" else ENGLISH)


class SignReader:
    """Puts what a voice cannot read into words of `language`; plain words stay as they are.

    A language without tables is read as English.  A word with a digit or a sign in it is held
    until the word behind it is there, since a number may go on there ("12 000") or be counted
    ("5 km").  However the text is cut on its way in, the output is the same.  Work is linear.
    """

    def __init__(self, language: str, drops: Drops | None = None) -> None:
        self._rules = _rules(language)
        self._drops = Drops() if drops is None else drops
        self._held = ""
        self._out: list[str] = []

    def feed(self, text: str) -> str:
        """What is decided by the text so far and was not given out before."""
        return self._read(text, final=False)

    def flush(self) -> str:
        """The rest of what was fed, as if the text ended here; it may go on all the same."""
        return self._read("", final=True)

    def finish(self) -> str:
        """The text is complete; as `flush`."""
        return self.flush()

    def _read(self, text: str, *, final: bool) -> str:
        self._held = Lookahead(self._held + text, final=final).read(self._step)
        said = "".join(self._out)
        self._out.clear()
        return said

    def _step(self, text: Lookahead, position: int) -> int:
        if text.text[position].isspace():
            self._out.append(text.text[position])
            return position + 1
        stop = _word_end(text, position)
        if not self._rules.begins(text.text[position:stop]):
            self._out.append(text.text[position:stop])
            return stop
        goes_on = True
        while goes_on and stop - position < _MAX_PASSAGE and text.at(stop) in _WITHIN:
            start = stop + 1
            if text.at(stop) == "" or text.at(start) == "" or text.at(start).isspace():
                break
            stop = _word_end(text, start)
            goes_on = self._rules.begins(text.text[start:stop])
        self._out.append(self._rules.spoken(text.text[position:stop], self._drops))
        return stop


def _word_end(text: Lookahead, start: int) -> int:
    found = text.find(_SPACE, start, _MAX_WORD)
    return start + _MAX_WORD if found < 0 else found
