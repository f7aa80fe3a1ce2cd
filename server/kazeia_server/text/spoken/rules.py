"""Which reading applies where: a passage in, what is said of it out."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable

from kazeia_server.text.drops import Drops
from kazeia_server.text.spoken.language import Currency, Language, Noun
from kazeia_server.text.spoken.numbers import Numeral, parse

__all__ = ["SignRules"]

_PAUSES = ".,;:!?…—()"
_QUOTES = "\"'“”‘’„‚«»‹›「」『』"
_APOSTROPHES = "'’"
# What is heard as another pause, or is another letter's or sign's double.
_LIKE = {
    ord(char): like
    for like, chars in {
        "—": "―‒",
        "-": "‐‑",
        "(": "[{",
        ")": "]}",
        ",": "、·•∙・،",
        ".": "。।",
        "…": "‥",
        "!": "‼⁉",
        "?": "⁇⁈؟",
        ";": "؛",
        " ": "\u00a0\u202f\u2009",
        "\u00b5": "\u03bc",  # micro
        "\u03a9": "\u2126",  # ohm
        "\u0394": "\u2206",
    }.items()
    for char in chars
}
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_NAMED_LETTER = re.compile(r"LATIN (SMALL|CAPITAL) (?:LETTER|LIGATURE) ([A-Z]{1,2})(?: WITH .+)?")
_POWERS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_DIGITS_OF_POWERS = str.maketrans(_POWERS, "0123456789-")
_HALF_DAY = re.compile(r" ?[ap]\.? ?m\b", re.IGNORECASE)
_LONGEST_SIGN = 3
_LONGEST_IN_ADDRESS = 4  # digits of a number that is not read digit by digit there

Reading = Callable[["re.Match[str]"], "str | None"]


def _any_of(words: Iterable[str]) -> str:
    """An expression for any of `words`, the longest first."""
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


def _constant(words: str) -> Reading:
    return lambda _: words


class _Said:
    """Words and pauses put together, with spaces where they are needed."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._last = " "
        self._parted = False  # a letter that comes now begins a word
        self._opening = False  # the last character opens a quotation

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def words(self, words: str) -> None:
        """Words of their own."""
        if not (self._last.isspace() or self._last == "(" or self._opening):
            self._put(" ")
        self._put(words)
        self._parted = True

    def char(self, char: str) -> None:
        """A character as it is."""
        if self._parted and char.isalnum() and not self._last.isspace():
            self._put(" ")
        self._parted = self._parted and char in _QUOTES
        opening = char in _QUOTES and (self._last.isspace() or self._last == "(" or self._opening)
        self._put(char)
        self._opening = opening

    def pause(self, char: str) -> None:
        """A mark that is heard as a pause."""
        if (char == "—" or (char == "(" and self._parted)) and not self._last.isspace():
            self._put(" ")
        self._put(char)
        self._parted = char != "("

    def part(self) -> None:
        """The word ends."""
        self._parted = True

    def _put(self, text: str) -> None:
        self._parts.append(text)
        self._last = text[-1]
        self._opening = False


class SignRules:
    """The readings of one language.

    Rules are tried in order at every place; the first that has a reading there is taken.
    """

    def __init__(self, language: Language) -> None:
        self._language = language
        self._style = language.style
        number = language.style.pattern
        units = _any_of(language.units)
        money = _any_of(language.currencies)
        scale = rf"(?: ?(?P<scale>{_any_of(language.scales)})(?!\w))?"
        address = r"[\w.+%-]*\w@[\w-]+(?:\.[\w-]+)+"
        host = r"(?:\w+://)?(?:[A-Za-z0-9][\w-]*\.)+[a-z]{2,}|[A-Z][A-Z0-9-]+(?:\.[A-Z]{2,})+"
        self._opener = re.compile(
            _any_of((*language.abbreviated, *language.months, *language.links))
        )
        letters = language.letters
        self._letter = re.compile(rf"[{letters}]")
        self._plain = re.compile(
            rf"\(*[{letters}]+(?:['’-][{letters}]+)*[{re.escape(_PAUSES)}]*|[{re.escape(_PAUSES)}]+"
        )
        rules: list[tuple[str, Reading]] = [
            (rf"(?<![\w@]){address}", self._address),
            (rf"(?<![\w@.])(?:{host})(?!\w)(?:[:/?#][\w.:/?#&=%+~@-]*[\w/])?", self._address),
            (rf"(?<!\w)({_any_of(language.abbreviated)}) (?=\d)", self._abbreviated),
            (r"(?<![\w.])(?:[A-Za-z]\.)+[A-Za-z]?(?!\w)", lambda match: match[0]),
            (r"(?<![\w.])(\d{1,2})\.(\d{1,2})\.(\d{4})(?![\w.]\d)", self._dotted_date),
            (r"(?<!\w)(\d{4})-(\d\d)-(\d\d)(?!\w)", self._iso_date),
            (r"(?<![\w/])(\d{1,4})/(\d{1,2})/(\d{4}|\d\d)(?![\w/])", self._slash_date),
            (rf"(?<![\w:]){language.clock}(?:(?![\w:])|(?=[AaPp][Mm]\b))", self._time),
            (r"(?<![\w+])\+(?:\d{1,3}(?:[ /-]\(?\d+\)?)+|\d{6,})(?!\w)", self._phone),
            (r"(?<![\w-])(?:\(\d{3}\) ?|\d{3}-)?\d{3}-\d{4}(?![\w-])", self._phone),
            (r"(?<!\w)0\d(?:[ .]\d\d){4}(?!\w)", self._phone),
            (r"(?<![\d.,])\d+(?:\.\d+){2,}(?!\w)", self._version),
            (rf"(?P<money>{money}) ?(?P<number>{number}){scale}", self._money),
            (rf"(?P<number>{number}){scale} ?(?P<money>{money})(?!\w)", self._money),
            (rf"(\d+)({_any_of(language.ordinal_marks)})(?!\w)", self._ordinal),
            (r"(?<![\w/.])(?:(\d+) )?(\d{1,2})[/⁄](\d{1,2})(?![\w/])", self._fraction),
            (r"(?<!\w)['’]?(\d{2,4})['’]?s(?!\w)", self._decade),
            (rf"({number}) ?({units})/({units})(?!\w)", self._rate),
            (rf"({number}) ?({units})(?!\w)", self._measure),
            (rf"(?<!\w)({_any_of(language.months)}) (\d{{1,2}})(?!\w|[.,]?\d)", self._month_day),
            (r"(?<![\d.,])([12]\d{3})(?![\d]|[.,]\d)", self._year),
            (rf"{number}", self._number),
            (rf"(?<=[\w)])[{_POWERS}]+", self._power),
            *((pattern, _constant(word)) for pattern, word in language.contexts),
        ]
        self._rules = [(re.compile(pattern), reading) for pattern, reading in rules]

    def begins(self, word: str) -> bool:
        """Whether `word` is read in another way than as a word, or what follows it may be."""
        return bool(self._opener.fullmatch(word)) or not self._plain.fullmatch(word)

    def spoken(self, passage: str, drops: Drops) -> str:
        """The passage in letters and pauses; what is left out is named in `drops`."""
        text = unicodedata.normalize("NFC", passage).translate(_LIKE)
        text = _VULGAR.sub(_spaced_fraction, text)
        said = _Said()
        position = 0
        while position < len(text):
            position = self._step(text, position, said, drops)
        return self._language.joined(said.text)

    def _step(self, text: str, position: int, said: _Said, drops: Drops) -> int:
        for pattern, reading in self._rules:
            match = pattern.match(text, position)
            if match and (words := reading(match)) is not None:
                said.words(words)
                return match.end()
        for stop in range(min(position + _LONGEST_SIGN, len(text)), position, -1):
            if (words := self._language.signs.get(text[position:stop])) is not None:
                said.words(words)
                return stop
        self._char(text, position, said, drops)
        return position + 1

    def _char(self, text: str, position: int, said: _Said, drops: Drops) -> None:
        """A character that no rule and no table has."""
        char = text[position]
        before, after = text[:position][-1:], text[position + 1 : position + 2]
        if (
            char.isspace()
            or self._letter.match(char)
            or (char in _APOSTROPHES and before.isalpha())
        ):
            said.char(char)
        elif char == "." and before.isalnum() and (after.islower() or after.isdigit()):
            said.words(self._language.marks["."])
        elif char in _PAUSES:
            said.pause(char)
        elif char in "-–":
            self._dash(char, before, after, said, drops)
        elif (word := self._letters_for(char)) is not None:
            for letter in word:
                said.char(letter)
        elif (words := self._name(char, before + after)) is not None:
            said.words(words)
        else:  # a voice that has it after all may say it
            drops.char(char)
            said.char(char)

    def _dash(self, char: str, before: str, after: str, said: _Said, drops: Drops) -> None:
        if before.isalpha() and after.isalpha() and char == "-":
            said.char(char)
        elif before.isalnum() and after.isalnum():
            said.part()
        elif before.strip() and after.strip():
            drops.char(char)
        else:
            said.pause("—")

    def _letters_for(self, char: str) -> str | None:
        """The letters that stand for one that the voices have no sound for."""
        letter = _NAMED_LETTER.fullmatch(unicodedata.name(char, ""))
        if letter:
            return letter[2] if letter[1] == "CAPITAL" else letter[2].lower()
        plain = unicodedata.normalize("NFKC", char)
        return plain if plain.isascii() and plain.isalpha() else None

    def _name(self, char: str, beside: str) -> str | None:
        """What is said of a sign, a Greek letter that stands alone, or another form of these."""
        name = unicodedata.name(char, "")
        if name.startswith("GREEK") and not beside.isalpha():
            return name.split(" WITH ")[0].split()[-1].lower().replace("lamda", "lambda")
        plain = unicodedata.normalize("NFKC", char)
        if plain != char and plain.isprintable() and not re.search(r"[\sμ]|[^\W\d_]", plain):
            return self.spoken(plain, Drops())
        if unicodedata.category(char)[0] in "SN":
            return self._language.sign_name(char) or None
        return None

    # Readings

    def _numerals(self, written: str) -> list[Numeral]:
        return parse(written, self._style.groups)

    def _address(self, match: re.Match[str]) -> str:
        said = []
        for part in re.findall(r"\d+|[^\W\d_]+|.", match[0]):
            if part.isdecimal():
                short = len(part) <= _LONGEST_IN_ADDRESS
                said.append(self._style.words(Numeral(part)) if short else self._style.digits(part))
            else:
                said.append(self._language.marks.get(part) or self._language.signs.get(part, part))
        return " ".join(said)

    def _iso_date(self, match: re.Match[str]) -> str | None:
        return self._date(match[1], int(match[2]), int(match[3]))

    def _dotted_date(self, match: re.Match[str]) -> str | None:
        return self._date(match[3], int(match[2]), int(match[1]))

    def _slash_date(self, match: re.Match[str]) -> str | None:
        if len(match[1]) == 4:
            return self._date(match[1], int(match[2]), int(match[3]))
        year = match[3] if len(match[3]) == 4 else f"20{match[3]}"
        first, second = int(match[1]), int(match[2])
        month, day = (first, second) if self._language.month_first else (second, first)
        return self._date(year, month, day) or self._date(year, day, month)

    def _date(self, year: str, month: int, day: int) -> str | None:
        if not (1 <= month <= 12 and 1 <= day <= 31 and int(year) >= 1000):
            return None
        return self._language.date(year, month, day)

    def _time(self, match: re.Match[str]) -> str | None:
        hour, minute = int(match[1]), int(match[2])
        if hour > 24:
            return None
        half_day = _HALF_DAY.match(match.string, match.end()) is not None
        second = None if match[3] is None else int(match[3])
        return self._language.time(hour, minute, second, half_day=half_day)

    def _phone(self, match: re.Match[str]) -> str:
        plus = self._language.signs["+"] + " " if match[0].startswith("+") else ""
        return plus + self._language.phone(re.findall(r"\d+", match[0]))

    def _version(self, match: re.Match[str]) -> str | None:
        numerals = self._numerals(match[0])
        if len(numerals) == 1 and self._style.groups == ".":
            return None
        return f" {self._language.version_point} ".join(
            self._style.words(Numeral(part)) for part in match[0].split(".")
        )

    def _money(self, match: re.Match[str]) -> str | None:
        (number, *others) = self._numerals(match["number"])
        if others:
            return None
        currency = self._language.currencies[match["money"]]
        if match["scale"]:
            scale = self._language.noun(self._language.scales[match["scale"]], number)
            return f"{self._style.words(number)} {scale} {currency.unit.many}"
        if len(number.fraction) != 2 or currency.cent is None:
            return self._counted(number, currency.unit)
        return self._with_cents(number, currency, currency.cent)

    def _with_cents(self, number: Numeral, currency: Currency, cent: Noun) -> str:
        parts = [(Numeral(number.whole), currency.unit)]
        cents = Numeral(str(int(number.fraction)))
        if cents.value:
            parts = [*parts, (cents, cent)] if number.value else [(cents, cent)]
        return f" {self._language.and_} ".join(self._counted(*part) for part in parts)

    def _counted(self, number: Numeral, noun: Noun) -> str:
        words = self._style.words(number, feminine=noun.feminine)
        return f"{words} {self._language.noun(noun, number)}"

    def _ordinal(self, match: re.Match[str]) -> str:
        return self._style.ordinal(match[1], feminine=self._language.ordinal_marks[match[2]])

    def _fraction(self, match: re.Match[str]) -> str | None:
        top, bottom = int(match[2]), int(match[3])
        if not 0 < top < bottom <= 10:
            return None
        words = self._language.fraction(top, bottom)
        if match[1]:
            words = f"{self._style.words(Numeral(match[1]))} {self._language.and_} {words}"
        return words

    def _decade(self, match: re.Match[str]) -> str | None:
        return self._language.decade(match[1])

    def _rate(self, match: re.Match[str]) -> str | None:
        measured = self._measure(match)
        per = self._language.units[match[3]].one
        return None if measured is None else f"{measured} {self._language.per} {per}"

    def _measure(self, match: re.Match[str]) -> str | None:
        (number, *others) = self._numerals(match[1])
        return None if others else self._counted(number, self._language.units[match[2]])

    def _month_day(self, match: re.Match[str]) -> str | None:
        if not (self._language.month_first and 1 <= int(match[2]) <= 31):
            return None
        return f"{match[1]} {self._style.ordinal(match[2])}"

    def _abbreviated(self, match: re.Match[str]) -> str:
        return self._language.abbreviated[match[1]]

    def _year(self, match: re.Match[str]) -> str | None:
        year = int(match[1])
        return self._style.year(year) if 1100 <= year < 2100 else None

    def _power(self, match: re.Match[str]) -> str:
        if match[0] in self._language.signs:
            return self._language.signs[match[0]]
        return (
            f"{self._language.power} {self.spoken(match[0].translate(_DIGITS_OF_POWERS), Drops())}"
        )

    def _number(self, match: re.Match[str]) -> str:
        return ", ".join(map(self._style.words, self._numerals(match[0])))


def _spaced_fraction(match: re.Match[str]) -> str:
    """ "2½" as "2 1⁄2"."""
    after_digit = match.start() and match.string[match.start() - 1].isdigit()
    return " " * bool(after_digit) + unicodedata.normalize("NFKC", match[0])
