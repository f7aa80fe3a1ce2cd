"""What a language needs to put signs into words: tables, and a few readings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from kazeia_server.text.spoken.numbers import NumberStyle, Numeral

__all__ = ["Currency", "Language", "Noun", "nouns"]


@dataclass(frozen=True, slots=True)
class Noun:
    """What can be counted."""

    one: str
    many: str
    feminine: bool = False


def nouns(table: str) -> dict[str, Noun]:
    """Lines of "sign one many": underscores are spaces, no many: one and an s, a star: feminine."""
    found = {}
    for line in table.strip().splitlines():
        sign, one, *many = (word.replace("_", " ") for word in line.rstrip(" *").split())
        found[sign] = Noun(one, many[0] if many else one + "s", line.endswith("*"))
    return found


@dataclass(frozen=True, slots=True)
class Currency:
    """A currency and its hundredth, if it has one."""

    unit: Noun
    cent: Noun | None = None


@dataclass(frozen=True)
class Language(ABC):
    """A language; its readings are methods, as their order of words differs.

    `letters` are those its voices have sounds for, for a class of `re`.  `signs` are read wherever
    they stand, unless one of `contexts`, expressions with their words, matches there.
    `abbreviated` and `months` are words that concern the number behind them.
    """

    style: NumberStyle
    letters: str
    signs: Mapping[str, str]
    contexts: tuple[tuple[str, str], ...]
    abbreviated: Mapping[str, str]
    months: tuple[str, ...]
    links: tuple[str, ...]  # plain words between two numbers that belong together
    units: Mapping[str, Noun]
    currencies: Mapping[str, Currency]
    scales: Mapping[str, Noun]  # "M": million
    ordinal_marks: Mapping[str, bool]  # whether feminine
    marks: Mapping[str, str]  # punctuation that is named within addresses
    clock: str  # expression of a time: hour, minute, maybe second
    month_first: bool  # in dates
    version_point: str
    per: str
    and_: str
    power: str

    def noun(self, noun: Noun, number: Numeral) -> str:
        """The noun behind `number`."""
        return noun.one if self.is_singular(number) else noun.many

    @abstractmethod
    def is_singular(self, number: Numeral) -> bool:
        """Whether what is counted so is in the singular."""

    @abstractmethod
    def time(self, hour: int, minute: int, second: int | None, *, half_day: bool) -> str:
        """A time of the day; `half_day`: a.m. or p.m. follows."""

    @abstractmethod
    def date(self, year: str, month: int, day: int) -> str:
        """A date; `year` is four digits, or empty."""

    @abstractmethod
    def fraction(self, top: int, bottom: int) -> str:
        """A fraction, 0 < top < bottom <= 10."""

    @abstractmethod
    def decade(self, digits: str) -> str | None:
        """What digits with a plural s mean, if that is said here."""

    @abstractmethod
    def phone(self, groups: list[str]) -> str:
        """A telephone number."""

    @abstractmethod
    def sign_name(self, char: str) -> str:
        """The name of a sign that no table has; "" where there is none."""

    def joined(self, text: str) -> str:
        """Words put together as they are said together."""
        return text
