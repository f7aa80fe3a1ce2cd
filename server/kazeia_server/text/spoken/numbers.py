"""Written numbers, and the words for them."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache

from unicode_rbnf import RbnfEngine

__all__ = ["NumberStyle", "Numeral", "parse"]

_MAX_DIGITS = 15  # what the rules of CLDR have words for in every language
_GROUPING = re.compile(r"(?<=\d)[ '’](?=\d)")
_MARKS = re.compile(r"[.,]")


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number as decimal digits: `whole` may begin with zeros, `fraction` may be empty."""

    whole: str
    fraction: str = ""

    @property
    def value(self) -> int:
        """Of the whole part."""
        return int(self.whole)


@dataclass(frozen=True, slots=True)
class NumberStyle:
    """How a language writes and says numbers.

    `pattern` is the expression of a number in text; `groups` is the mark, "," or ".", that parts
    thousands, the other one being the decimal mark.  The names are rule sets of CLDR.
    """

    code: str
    pattern: str
    groups: str
    point: str
    cardinals: tuple[str, str]  # masculine (or only), feminine
    ordinals: tuple[str, str]
    years: str = ""  # "": as cardinals

    def words(self, number: Numeral, *, feminine: bool = False) -> str:
        """The number; what begins with 0, and what is too long for words, digit by digit."""
        whole = number.whole
        if len(whole) > _MAX_DIGITS or (len(whole) > 1 and int(whole[0]) == 0):
            words = self.digits(whole)
        else:
            words = self._say(number.value, self.cardinals[feminine and not number.fraction])
        return f"{words} {self.point} {self.digits(number.fraction)}" if number.fraction else words

    def digits(self, digits: str) -> str:
        """One digit after the other."""
        return " ".join(self._say(int(digit), self.cardinals[0]) for digit in digits)

    def ordinal(self, digits: str, *, feminine: bool = False) -> str:
        """The ordinal; the cardinal if it is too long for words."""
        if len(digits) > _MAX_DIGITS:
            return self.digits(digits)
        return self._say(int(digits), self.ordinals[feminine])

    def year(self, year: int) -> str:
        """A number of four digits as a year."""
        return self._say(year, self.years or self.cardinals[0])

    def _say(self, number: int, rules: str) -> str:
        return _engine(self.code).format_number(number, ruleset_names=[rules]).text


@cache
def _engine(code: str) -> RbnfEngine:
    return RbnfEngine.for_language(code)


def parse(written: str, groups: str) -> list[Numeral]:
    """The number that `written` is, or the numbers, if commas or points part several.

    A mark that stands before groups of exactly three digits parts thousands if it is `groups` or
    occurs several times; else a single mark is the decimal one, whichever it is.  Of two different
    marks the last is the decimal one.  So "1,000" is a thousand and "22,1" has a decimal comma in
    English, "1.000" is a thousand and "22.1" has a decimal point in French.
    """
    ascii_digits = "".join(
        str(unicodedata.decimal(char)) if char.isdecimal() else char for char in written
    )
    plain = _GROUPING.sub("", ascii_digits)
    marks = _MARKS.findall(plain)
    parts = _MARKS.split(plain)
    if not parts[0]:  # ".5"
        return [Numeral("0", parts[1])]
    if not marks:
        return [Numeral(plain)]
    if len(marks) == 1:
        if marks[0] == groups and _in_threes(parts):
            return [Numeral("".join(parts))]
        return [Numeral(*parts)]
    if len(set(marks)) == 1 and _in_threes(parts):
        return [Numeral("".join(parts))]
    if len(set(marks[:-1])) == 1 and marks[-1] != marks[0] and _in_threes(parts[:-1]):
        return [Numeral("".join(parts[:-1]), parts[-1])]
    return [Numeral(part) for part in parts]


def _in_threes(parts: list[str]) -> bool:
    head, *rest = parts
    return 1 <= len(head) <= 3 and head[0] != "0" and all(len(part) == 3 for part in rest)
