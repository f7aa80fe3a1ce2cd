"""Sentences and pieces of a text that may still be arriving.

`Segmenter` cuts text of any of the ten languages into the pieces a voice speaks one after another.
It is told no language: the rules are the union of the ten, which works because they rarely
disagree.  Where they do, no cut is made: a sentence too long is spoken well, one cut after "Dr."
is not.

A sentence ends

- at `。！？` (with closing quotes and brackets), unless hiragana follows a closing quote;
- at `.` `!` `?` `…` before a space or line break, unless a lower-case word follows (in text written
  without capitals only abbreviations and "..." are excepted), or the full stop belongs to an
  abbreviation, an initial, a list number or a German ordinal;
- at a line break after such a mark; without a mark, after ":", or after a line too short
  or too long to be wrapped prose, unless the next one begins in lower case;
- at an empty line, which also ends the paragraph.

Any other white space, line breaks included, is one space; none between Chinese or Japanese lines.
Text without anything to say in it ("...", "***") makes no piece.

Why not a library: `pysbd` 0.3.4 takes quadratic time ("Dr. " 4000 times: 2.3 s, doubling the text
takes four times as long) and lacks Korean and Portuguese; `sentencex` 1.0.32 is quadratic on
unclosed brackets ("「"), has to be told the language, cuts "M. Dupont" and "т.е. это".  Both want
the whole text: neither can say which of its decisions more text would change.

Work is linear: a character is looked at a bounded number of times.
"""

from __future__ import annotations

import re

from kazeia_server.text.characters import (
    BREAKS,
    CLAUSE_MARKS,
    CLOSERS,
    END_MARKS,
    SINGLE,
    WIDE_END_MARKS,
    columns,
    has_content,
    is_mark,
    is_wide,
)
from kazeia_server.text.lookahead import Lookahead
from kazeia_server.text.pieces import Pause, PieceEnd, PiecePacker, Split, Unit
from kazeia_server.text.sentence_ends import EndKind, end_kind, first_letter, goes_on

__all__ = ["PieceEnd", "Segmenter", "has_content"]

_MIN_LIMIT = 4
_MAX_UNIT = 64  # characters of a word that are kept together
_OPENERS = frozenset("\"'([{“‘„‚«‹「『（【《〈〔〖［｛＂¿¡")
_SMALL_KANA = "ぁぃぅぇぉっゃゅょゎー々ゝゞ"
_TAIL = frozenset(END_MARKS + CLAUSE_MARKS + CLOSERS + _SMALL_KANA) - {"-", "—", "–"}
_WIDE_MARKS = WIDE_END_MARKS + "，、；：）」』】》〉〕〗］｝"
_WORD_END = re.compile(rf"[\s{SINGLE}{re.escape(_WIDE_MARKS)}「『（【《〈〔〖［｛]")
_IS_SINGLE = re.compile(f"[{SINGLE}]")
_JOINERS = "\u200c\u200d\ufe0e\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"

# A line between these widths, in columns, may be prose wrapped by an editor.
_WRAPPED = range(45, 101)
_MAX_OPENERS = 8
_LIST_MARK = re.compile(r"[-*+•#>|]|\d{1,3}[.)]\s")


class Segmenter:
    """Text in, pieces out; no I/O.

    split: "auto" ends the first piece with the first sentence, so that speech starts early, and
    fills later ones with whole sentences until they are half full; "sentence" makes a piece of each
    sentence; "none" ends pieces only at `limit`.  No piece is wider than `limit` columns
    (the first, except with "none": `first_limit`); Chinese, Japanese and Korean characters count
    two.  A longer sentence is cut after a clause mark in the later half of the piece, else at a
    space, else anywhere but within a number or a character with its marks.

    The strings of a piece joined are never empty, hold no line breaks and no double spaces.
    However the text is cut on its way in, the events are the same once adjacent strings are joined.
    Raises ValueError if a limit is below 4.
    """

    def __init__(self, split: Split, *, first_limit: int, limit: int) -> None:
        if min(first_limit, limit) < _MIN_LIMIT:
            raise ValueError(f"limits must be at least {_MIN_LIMIT}, got {first_limit}, {limit}")
        bound = limit if split == "none" else min(first_limit, limit)
        self._max_unit = min(_MAX_UNIT, bound // 2)
        self._packer = PiecePacker(split, first_limit=first_limit, limit=limit)
        self._held = ""
        self._breaks = 0  # line breaks since the last unit
        self._spaced = False
        self._after_return = False
        self._last = ""  # last character of the last unit
        self._line_width = 0
        self._new_sentence()
        self._quotes_open = False

    def feed(self, text: str) -> list[str | PieceEnd]:
        """Events decided by now: strings belong to the open piece, a PieceEnd ends it."""
        self._held = Lookahead(self._held + text, final=False).read(self._step)
        return self._packer.take()

    @property
    def at_word_end(self) -> bool:
        """Whether the next string of the open piece begins with a space, if there is one."""
        held = self._packer.first_held
        if held is not None:
            return held.spaced
        return self._spaced and not _is_ideographic(self._last)

    def flush(self) -> list[str | PieceEnd]:
        """Give out everything held, as if the text ended here, and end the open piece."""
        self._held = Lookahead(self._held, final=True).read(self._step)
        pause: Pause = "none" if self._end is None else "sentence"
        self._packer.end_piece(pause)
        self._new_sentence()
        self._breaks = 0
        return self._packer.take()

    def finish(self) -> list[str | PieceEnd]:
        """The text is complete; as `flush`."""
        return self.flush()

    def _new_sentence(self) -> None:
        self._end: EndKind | None = None  # how the last unit may end the sentence
        self._words = 0
        self._previous = ""  # the unit before
        self._lower_case = False  # the sentence begins with a small letter

    def _step(self, text: Lookahead, position: int) -> int:
        char = text.text[position]
        if char.isspace():
            self._take_space(char)
            return position + 1
        absorbed = self._end is not None and not self._breaks and _only_closes(text, position)
        if not absorbed and self._sentence_ends(text, position):
            self._packer.end_sentence(marked=self._end is not None)
            self._new_sentence()
            return position
        stop = self._unit_stop(text, position)
        following = text.at(stop)
        end = self._end
        self._take_unit(text.text[position:stop], following)
        if absorbed:
            self._end = self._end or end
        return stop

    def _take_space(self, char: str) -> None:
        after_return, self._after_return = self._after_return, char == "\r"
        self._spaced = True
        if char not in BREAKS or (after_return and char == "\n"):
            return
        self._breaks += 1
        if self._breaks == 2:
            self._packer.end_paragraph()
            self._new_sentence()
            self._quotes_open = False

    def _take_unit(self, unit: str, following: str) -> None:
        joined = self._breaks and _is_ideographic(self._last) and _is_ideographic(unit[0])
        bare = unit.rstrip(CLOSERS)
        self._packer.add(
            Unit(unit, self._spaced and not joined, bool(bare) and bare[-1] in CLAUSE_MARKS)
        )
        if not self._words:
            self._lower_case = first_letter(unit).islower()
        kind = end_kind(unit, following, previous=self._previous, first=not self._words)
        self._end = kind
        self._line_width = columns(unit) + (0 if self._breaks else self._line_width + self._spaced)
        self._previous = unit
        self._words += 1
        self._last = unit[-1]
        self._quotes_open ^= unit.count('"') % 2 == 1
        self._spaced = False
        self._breaks = 0
        self._after_return = False

    def _sentence_ends(self, text: Lookahead, position: int) -> bool:
        """Whether a sentence ended before the unit at `position`."""
        if self._breaks > 1 or not self._words:
            return False
        if self._end is None:
            return self._breaks == 1 and self._line_ends(text, position)
        letter = ""
        for index in range(position, position + _MAX_OPENERS):
            char = text.at(index)
            if char.isalnum() or char == "":
                letter = char
                break
        return not goes_on(
            self._end, letter, lower_case=self._lower_case, new_line=self._breaks == 1
        )

    def _line_ends(self, text: Lookahead, position: int) -> bool:
        """Whether the line before, which has no end mark, is a line of its own."""
        if self._last in ":：":
            return True
        if self._last in ".,-–—，、(（":
            return False
        char = text.at(position)
        if char.islower():
            return False
        if char in "-*+•#>|" or char.isdigit():
            for index in range(position, position + 5):
                if text.at(index).isspace() or text.at(index) == "":
                    break
            if _LIST_MARK.match(text.text, position):
                return True
        return self._line_width not in _WRAPPED

    def _unit_stop(self, text: Lookahead, position: int) -> int:
        """Where the unit that begins at `position` stops; the character there is at hand."""
        limit = position + self._max_unit
        stop = position
        while stop < limit and text.at(stop) in _OPENERS and text.at(stop):
            stop += 1
        char = text.at(stop)
        if stop < limit and char and not char.isspace():
            if _IS_SINGLE.match(char):
                stop += 1
            elif char not in _WIDE_MARKS:
                found = text.find(_WORD_END, stop, limit - stop)
                stop = limit if found < 0 else found
        while stop < limit and self._belongs_to_tail(text, position, stop):
            stop += 1
        if stop == limit and text.at(stop):
            return _whole_cut(text.text, position, stop)
        return stop

    def _belongs_to_tail(self, text: Lookahead, start: int, index: int) -> bool:
        char = text.at(index)
        if char == '"':
            inside = text.text.count('"', start, index) % 2 == 1
            return inside != self._quotes_open
        return char != "" and (char in _TAIL or is_mark(char))


def _only_closes(text: Lookahead, position: int) -> bool:
    """Whether marks that belong to the sentence before stand alone here, as in "« Oui ! »"."""
    for index in range(position, position + _MAX_OPENERS):
        char = text.at(index)
        if char == "" or char.isspace():
            return index > position
        if char in "\"'" or (char not in CLOSERS and char not in END_MARKS):
            return False
    return False


def _is_ideographic(char: str) -> bool:
    """Whether lines are broken beside the character without a space being meant."""
    hangul = (
        "\u1100" <= char <= "\u11ff" or "\u3130" <= char <= "\u318f" or "가" <= char <= "\ud7ff"
    )
    return char != "" and is_wide(char) and not hangul


def _whole_cut(text: str, start: int, stop: int) -> int:
    """The place at or before `stop` where a long word can be cut."""
    cut = stop
    while cut > start + 1 and (
        is_mark(text[cut]) or text[cut] in _JOINERS or text[cut - 1] == "\u200d"
    ):
        cut -= 1
    if cut > start + 1 and text[cut].isdigit() and text[cut - 1].isdigit():
        number = cut
        while number > start and text[number - 1].isdigit():
            number -= 1
        cut = number if number > (start + stop) // 2 else cut
    if cut <= start + 1 and stop > start + 1:
        return stop
    return cut
