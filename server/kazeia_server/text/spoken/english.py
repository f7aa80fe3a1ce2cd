"""Signs and numbers in English words."""

from __future__ import annotations

import re
import unicodedata

from kazeia_server.text.spoken.language import Currency, Language, Noun, nouns
from kazeia_server.text.spoken.numbers import NumberStyle, Numeral

__all__ = ["ENGLISH"]


_UNITS = nouns(
    """
    km kilometer
    m meter
    cm centimeter
    mm millimeter
    µm micrometer
    nm nanometer
    km² square_kilometer
    m² square_meter
    cm² square_centimeter
    m³ cubic_meter
    cm³ cubic_centimeter
    ha hectare
    kg kilogram
    g gram
    mg milligram
    µg microgram
    lb pound
    lbs pound
    oz ounce
    ft foot feet
    yd yard
    mi mile
    l liter
    L liter
    dl deciliter
    cl centiliter
    ml milliliter
    mL milliliter
    h hour
    hr hour
    hrs hour
    min minute
    mins minute
    s second
    sec second
    secs second
    ms millisecond
    mph mile_per_hour miles_per_hour
    kph kilometer_per_hour kilometers_per_hour
    Hz hertz hertz
    kHz kilohertz kilohertz
    MHz megahertz megahertz
    GHz gigahertz gigahertz
    kB kilobyte
    KB kilobyte
    MB megabyte
    GB gigabyte
    TB terabyte
    KiB kibibyte
    MiB mebibyte
    GiB gibibyte
    kbit kilobit
    Mbit megabit
    Gbit gigabit
    kbps kilobit_per_second kilobits_per_second
    Mbps megabit_per_second megabits_per_second
    Gbps gigabit_per_second gigabits_per_second
    fps frame_per_second frames_per_second
    W watt
    kW kilowatt
    MW megawatt
    GW gigawatt
    Wh watt_hour
    kWh kilowatt_hour
    mAh milliamp_hour
    V volt
    kV kilovolt
    mV millivolt
    mA milliamp
    Ω ohm
    kΩ kiloohm
    Pa pascal
    hPa hectopascal
    kPa kilopascal
    dB decibel
    kcal kilocalorie
    kJ kilojoule
    K kelvin kelvin
    °C degree_Celsius degrees_Celsius
    ℃ degree_Celsius degrees_Celsius
    °F degree_Fahrenheit degrees_Fahrenheit
    ℉ degree_Fahrenheit degrees_Fahrenheit
    ° degree
    % percent percent
    ‰ per_mille per_mille
    """
)

_DOLLAR = Currency(Noun("dollar", "dollars"), Noun("cent", "cents"))
_EURO = Currency(Noun("euro", "euros"), Noun("cent", "cents"))
_POUND = Currency(Noun("pound", "pounds"), Noun("penny", "pence"))
_YEN = Currency(Noun("yen", "yen"))
_FRANC = Currency(Noun("Swiss franc", "Swiss francs"), Noun("rappen", "rappen"))

_CURRENCIES = {
    "$": _DOLLAR,
    "USD": _DOLLAR,
    "€": _EURO,
    "EUR": _EURO,
    "£": _POUND,
    "GBP": _POUND,
    "¥": _YEN,
    "JPY": _YEN,
    "CHF": _FRANC,
    "₹": Currency(Noun("rupee", "rupees")),
    "₩": Currency(Noun("won", "won")),
    "₽": Currency(Noun("ruble", "rubles")),
    "₿": Currency(Noun("bitcoin", "bitcoins")),
    "¢": Currency(Noun("cent", "cents")),
}

_SIGNS = {
    "+/-": "plus or minus",
    "±": "plus or minus",
    "∓": "minus or plus",
    "+": "plus",
    "−": "minus",
    "*": "asterisk",
    "×": "times",
    "⋅": "times",
    "÷": "divided by",
    "/": "slash",
    "⁄": "slash",
    "∕": "slash",
    "\\": "backslash",
    "=": "equals",
    "==": "equals",
    "!=": "is not equal to",
    "≠": "is not equal to",
    "≈": "is about",
    "<": "less than",
    ">": "greater than",
    "<=": "less than or equal to",
    "≤": "less than or equal to",
    ">=": "greater than or equal to",
    "≥": "greater than or equal to",
    "->": "arrow",
    "=>": "arrow",
    "→": "arrow",
    "←": "left arrow",
    "↑": "up arrow",
    "↓": "down arrow",
    "√": "square root of",
    "%": "percent",
    "‰": "per mille",
    "°": "degrees",
    "€": "euros",
    "$": "dollars",
    "£": "pounds",
    "¥": "yen",
    "¢": "cents",
    "&": "and",
    "&&": "and",
    "#": "hash",
    "@": "at",
    "~": "tilde",
    "^": "caret",
    "_": "underscore",
    "|": "vertical bar",
    "||": "or",
    "¦": "broken bar",
    "¬": "not",
    "§": "section",
    "¶": "paragraph",
    "©": "copyright",
    "®": "registered",
    "™": "trademark",
    "№": "number",
    "†": "dagger",
    "‡": "double dagger",
    "′": "prime",
    "″": "double prime",
    "²": "squared",
    "³": "cubed",
    "`": "backtick",
    "µ": "micro",
}

_CONTEXTS = (
    (r"#(?=\d)", "number"),
    (r"(?<=[A-Za-z])#(?!\w)", "sharp"),
    (r"#(?=[A-Za-z])", "hashtag"),
    (r"~(?= ?[\d$€£])", "about"),
    (r"(?<=[\w)])(?:\*\*|\^)(?=[\w(-])", "to the power of"),
    (r"(?<=\d)\*(?= )", "star"),
    (r"(?<=[\w)])\*(?=[\w(-])|(?<= )\*(?= [\d(])", "times"),
    (r"(?<=\d)[x×](?=\d)|(?<=\d )x(?= \d)", "by"),
    (r"(?<=\d):(?=\d)", "to"),
    (r"(?<=\d)[-–](?=[\d$€£])|(?<=\d )–(?= \d)", "to"),
    (r"(?<=\d )-(?= \d)", "minus"),
    (r"(?<![\w.)])-(?=[.\d$€£])", "minus"),
)


class _English(Language):
    def is_singular(self, number: Numeral) -> bool:
        return number == Numeral("1")

    def time(self, hour: int, minute: int, second: int | None, *, half_day: bool) -> str:
        words = self.style.words(Numeral(str(hour)))
        if minute:
            words += " oh " * (minute < 10) or " "
            words += self.style.words(Numeral(str(minute)))
        elif second is None and not half_day:
            words += " hundred" if hour > 12 else " o'clock"
        if second is not None:
            number = Numeral(str(second))
            words += f" and {self.style.words(number)} {'second' if second == 1 else 'seconds'}"
        return words

    def date(self, year: str, month: int, day: int) -> str:
        words = f"{self.months[month - 1]} {self.style.ordinal(str(day))}"
        return f"{words}, {self.style.year(int(year))}" if year else words

    def fraction(self, top: int, bottom: int) -> str:
        part = {2: "half", 4: "quarter"}.get(bottom) or self.style.ordinal(str(bottom))
        return f"{self.style.words(Numeral(str(top)))} {part if top == 1 else part + 's'}"

    def decade(self, digits: str) -> str | None:
        if not digits.endswith("0") or len(digits) not in (2, 4) or digits[0] == "0":
            return None
        words = (
            self.style.year(int(digits)) if len(digits) == 4 else self.style.words(Numeral(digits))
        )
        return words[:-1] + "ies" if words.endswith("y") else words + "s"

    def phone(self, groups: list[str]) -> str:
        return ", ".join(map(self.style.digits, groups))

    def sign_name(self, char: str) -> str:
        """As Unicode calls it."""
        name = unicodedata.name(char, "").lower()
        return re.sub(r" sign$|^n-ary |[^a-z ]", "", name)


ENGLISH = _English(
    style=NumberStyle(
        code="en",
        # Spaces part thousands only if the last group leaves no doubt.
        pattern=r"(?:\d{1,3}(?:['’]\d{3})+(?:\.\d+)?|\d{1,3}(?: \d{3})* 000(?:[.,]\d+)?"
        r"|\d+(?:[.,]\d+)*|(?<![\w.])\.\d+)(?!\d)",
        groups=",",
        point="point",
        cardinals=("spellout-cardinal", "spellout-cardinal"),
        ordinals=("spellout-ordinal", "spellout-ordinal"),
        years="spellout-numbering-year",
    ),
    # Its voices fall silent at some capitals, and at what is beyond Latin-1.
    letters="A-Za-zÀ-ÇÉÊÌ-ÏÑ-ÖØÚÜÞ-öø-ÿ",
    signs=_SIGNS,
    contexts=_CONTEXTS,
    abbreviated={
        "No.": "number",
        "no.": "number",
        "Nos.": "numbers",
        "nos.": "numbers",
        "p.": "page",
        "pp.": "pages",
        "vol.": "volume",
        "Vol.": "Volume",
        "fig.": "figure",
        "Fig.": "Figure",
        "ch.": "chapter",
        "Ch.": "Chapter",
    },
    months=(
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ),
    links=("x",),
    units=_UNITS,
    currencies=_CURRENCIES,
    scales={
        "thousand": Noun("thousand", "thousand"),
        "million": Noun("million", "million"),
        "billion": Noun("billion", "billion"),
        "trillion": Noun("trillion", "trillion"),
        "k": Noun("thousand", "thousand"),
        "K": Noun("thousand", "thousand"),
        "m": Noun("million", "million"),
        "M": Noun("million", "million"),
        "bn": Noun("billion", "billion"),
        "B": Noun("billion", "billion"),
    },
    ordinal_marks={"st": False, "nd": False, "rd": False, "th": False, "º": False, "ª": False},
    marks={".": "dot", "-": "dash", ":": "colon", "?": "question mark"},
    clock=r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?",
    month_first=True,
    version_point="point",
    per="per",
    and_="and",
    power="to the power of",
)
