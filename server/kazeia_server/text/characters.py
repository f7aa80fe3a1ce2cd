"""What a single character is to speech."""

from __future__ import annotations

import re
import unicodedata

__all__ = [
    "BREAKS",
    "CLAUSE_MARKS",
    "CLOSERS",
    "END_MARKS",
    "SINGLE",
    "WIDE_END_MARKS",
    "columns",
    "has_content",
    "is_dropped",
    "is_mark",
    "is_speakable",
    "is_wide",
]

BREAKS = frozenset("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")  # where str.splitlines cuts

# Characters written without spaces between words, each of which can stand alone: a class of `re`.
SINGLE = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)

WIDE_END_MARKS = "。！？｡"  # end a sentence without a space after them
END_MARKS = ".!?…‼⁇⁈⁉؟۔।॥．" + WIDE_END_MARKS
CLAUSE_MARKS = ",;:—–，；：、､،؛"
CLOSERS = "\"')]}”’»›」』）】》〉〕〗］｝＂"

# Symbols that voices read out; letters, digits and currency signs are so anyway.
_READ_OUT = frozenset("%‰&@§¶°©®™№℃℉")
_NOT_READ = frozenset("|~<>")  # mathematical by category, decoration in text

# Lo by category, yet blank.
_BLANK_LETTERS = frozenset("\u115f\u1160\u3164\uffa0\u2800")
# Pictures and drawing elements; only symbols (So, Sk) of these blocks, so "♭" and "❶" stay.
_PICTURES = re.compile(
    "[\u2300-\u23ff\u2500-\u266c\u2670-\u27bf\u2800-\u28ff\u2b00-\u2bff\U0001f000-\U0001faff]"
)


def is_wide(char: str) -> bool:
    """Whether the character takes two columns: Chinese, Japanese, Korean, full-width forms."""
    return unicodedata.east_asian_width(char) in "WF"


def columns(text: str) -> int:
    """Length of `text` in columns: wide characters, which take longer to say, count two."""
    if text.isascii():
        return len(text)
    return len(text) + sum(map(is_wide, text))


def is_mark(char: str) -> bool:
    """Whether the character combines with the one before it."""
    return unicodedata.category(char)[0] == "M"


def is_dropped(char: str) -> bool:
    """Whether no voice could make anything of the character.

    Controls, zero-width and bidirectional formatting, surrogates, unassigned and private
    characters, emoji and their parts, pictures and box drawing.  White space is kept.
    """
    if char.isascii():
        return not (char.isprintable() or char.isspace())
    category = unicodedata.category(char)
    if category[0] == "C":
        return not char.isspace()
    if category in ("So", "Sk") and (_PICTURES.match(char) or char in "\ufffc\ufffd"):
        return True
    if category == "Mn" and (char == "\u034f" or 0xFE00 <= ord(char) <= 0xFE0F):
        return True
    return char in _BLANK_LETTERS or 0xE0100 <= ord(char) <= 0xE01EF


def has_content(text: str) -> bool:
    """Whether anything in `text` is visible: not only spaces, controls or zero-width characters."""
    return any(
        char.isprintable() and not char.isspace() and char not in _BLANK_LETTERS for char in text
    )


def is_speakable(text: str) -> bool:
    """Whether anything in `text` is read aloud: a letter, a digit, or a symbol such as % & = €."""
    return any(map(_is_read, text))


def _is_read(char: str) -> bool:
    if char.isalnum():
        return char not in _BLANK_LETTERS
    category = unicodedata.category(char)
    return category == "Sc" or char in _READ_OUT or (category == "Sm" and char not in _NOT_READ)
