"""Whether a mark ends a sentence: abbreviations, initials, numbers and what follows."""

from __future__ import annotations

import re
from enum import Enum

from kazeia_server.text.abbreviations import BEFORE_NUMBER, BEFORE_ORDINAL, MAY_END, NEVER_END
from kazeia_server.text.characters import CLOSERS, END_MARKS, SINGLE, WIDE_END_MARKS

__all__ = ["EndKind", "end_kind", "first_letter", "goes_on"]

_IS_SINGLE = re.compile(f"[{SINGLE}\u30a0-\u30ff]")
_HIRAGANA = re.compile("[\u3041-\u309f]")
# Letters with full stops between them: "U.S", "z.B", "c.-à-d".
_DOTTED = re.compile(r"(?:[^\W\d_]{1,3}[.\-]{1,2})+[^\W\d_]{1,3}")
_DOTTED_MAY_END = frozenset(("a.m", "p.m", "т.д", "т.п", "н.э"))
_ONE_LETTER_WORDS = frozenset("яéèòà")  # that sentences do end with
_CLOSERS = CLOSERS + "“‘«‹"  # German closes with the signs that others open with
_APOSTROPHE = re.compile("['’]")
_NOT_LETTERS = "\"'([{“‘„‚«‹「『（【《〈〔〖［｛＂¿¡—–-*_"


class EndKind(Enum):
    """What the next word has to be for the sentence to end before it."""

    CERTAIN = "anything"
    PLAIN = "not in lower case, where the sentence has capitals"
    QUOTED = "not in lower case"  # the mark stands within quotes or brackets, or is an ellipsis
    ABBREVIATION = "neither in lower case nor a number"
    COUNTED = "no number, else as PLAIN"


def first_letter(text: str) -> str:
    """The first letter or digit behind opening marks; "" if there is none."""
    return text.lstrip(_NOT_LETTERS)[:1]


def goes_on(kind: EndKind, letter: str, *, lower_case: bool, new_line: bool) -> bool:
    """Whether the sentence goes on although its last unit is of `kind`.

    `letter` is the first letter or digit that follows, `lower_case` tells that the sentence itself
    begins with a small letter, `new_line` that the next word stands on a new line.
    """
    if kind is EndKind.CERTAIN:
        return False
    if kind is EndKind.ABBREVIATION:
        return letter.islower() or letter.isdigit()
    if kind is EndKind.COUNTED and letter.isdigit():
        return True
    if kind is EndKind.QUOTED:
        return letter.islower()
    return letter.islower() and not lower_case and not new_line


def end_kind(unit: str, following: str, *, previous: str, first: bool) -> EndKind | None:
    """How `unit` may end its sentence; None if it does not.

    `following` is the character directly behind it ("" at the end), `previous` the unit before,
    `first` tells that the unit begins the sentence.
    """
    bare = unit.rstrip(_CLOSERS)
    body = bare.rstrip(END_MARKS)
    marks = bare[len(body) :]
    if not marks:
        return None
    closed = len(bare) < len(unit)
    if any(mark in WIDE_END_MARKS for mark in marks):
        return None if closed and _HIRAGANA.match(following) else EndKind.CERTAIN
    if following and not following.isspace():
        # Without a space after it, a Western mark ends only Chinese and Japanese.
        ideographic = body != "" and _IS_SINGLE.match(body[-1]) and marks[-1] != "…"
        glued = ideographic or (marks[-1] in "!?" and _IS_SINGLE.match(following))
        return EndKind.CERTAIN if glued and not closed else None
    if closed or marks in ("…", "……") or (len(marks) > 1 and not marks.strip(".…")):
        return EndKind.QUOTED
    if marks != ".":
        return EndKind.PLAIN
    return _full_stop(body, previous=previous, first=first)


def _full_stop(body: str, *, previous: str, first: bool) -> EndKind | None:
    """The kind of a single full stop after `body`."""
    word = _APOSTROPHE.split(body.lstrip(_NOT_LETTERS))[-1]
    lower = word.lower()
    if word.isdigit() and len(word) <= 3:
        ordinal = previous.lower() in BEFORE_ORDINAL or (
            previous.endswith(",") and previous[:-1].isalpha()
        )
        return None if first or (ordinal and len(word) <= 2) else EndKind.PLAIN
    if len(word) == 1 and word.isalpha() and not _IS_SINGLE.match(word):
        return _single_letter(word, previous=previous, first=first)
    if "." in word and _DOTTED.fullmatch(word):
        return EndKind.ABBREVIATION if lower in _DOTTED_MAY_END else None
    if word in NEVER_END:
        return None
    if lower in MAY_END:
        return EndKind.ABBREVIATION
    if lower in BEFORE_NUMBER:
        return EndKind.COUNTED
    return EndKind.PLAIN


def _single_letter(word: str, *, previous: str, first: bool) -> EndKind | None:
    if word in _ONE_LETTER_WORDS or (word in "IЯ" and not first):
        return EndKind.PLAIN
    if word.isupper():
        return None
    # "5 m. Then", "и т. д. Потом"
    if previous[-1:].isdigit() or (len(previous) == 2 and previous[1] == "."):
        return EndKind.ABBREVIATION
    return None
