"""Signs and numbers in French words."""

from __future__ import annotations

import re

from kazeia_server.text.spoken.language import Currency, Language, Noun, nouns
from kazeia_server.text.spoken.numbers import NumberStyle, Numeral

__all__ = ["FRENCH"]

_UNITS = nouns(
    """
    km kilomètre
    m mètre
    cm centimètre
    mm millimètre
    µm micromètre
    nm nanomètre
    km² kilomètre_carré kilomètres_carrés
    m² mètre_carré mètres_carrés
    cm² centimètre_carré centimètres_carrés
    m³ mètre_cube mètres_cubes
    cm³ centimètre_cube centimètres_cubes
    ha hectare
    kg kilogramme
    g gramme
    mg milligramme
    µg microgramme
    t tonne *
    l litre
    L litre
    dl décilitre
    cl centilitre
    ml millilitre
    mL millilitre
    h heure *
    min minute *
    s seconde *
    ms milliseconde *
    j jour
    Hz hertz hertz
    kHz kilohertz kilohertz
    MHz mégahertz mégahertz
    GHz gigahertz gigahertz
    o octet
    ko kilo-octet
    Ko kilo-octet
    Mo mégaoctet
    Go gigaoctet
    To téraoctet
    kbit kilobit
    Mbit mégabit
    Gbit gigabit
    W watt
    kW kilowatt
    MW mégawatt
    GW gigawatt
    Wh wattheure
    kWh kilowattheure
    mAh milliampère-heure
    V volt
    kV kilovolt
    mV millivolt
    mA milliampère
    Ω ohm
    kΩ kilohm
    Pa pascal
    hPa hectopascal
    kPa kilopascal
    dB décibel
    kcal kilocalorie *
    kJ kilojoule
    K kelvin
    °C degré_Celsius degrés_Celsius
    ℃ degré_Celsius degrés_Celsius
    °F degré_Fahrenheit degrés_Fahrenheit
    ℉ degré_Fahrenheit degrés_Fahrenheit
    ° degré
    % pour_cent pour_cent
    ‰ pour_mille pour_mille
    """
)

_CENTIME = Noun("centime", "centimes")
_DOLLAR = Currency(Noun("dollar", "dollars"), Noun("cent", "cents"))
_EURO = Currency(Noun("euro", "euros"), _CENTIME)
_POUND = Currency(Noun("livre", "livres", feminine=True), Noun("penny", "pence"))
_YEN = Currency(Noun("yen", "yens"))
_FRANC = Currency(Noun("franc suisse", "francs suisses"), _CENTIME)

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
    "₹": Currency(Noun("roupie", "roupies", feminine=True)),
    "₩": Currency(Noun("won", "wons")),
    "₽": Currency(Noun("rouble", "roubles")),
    "₿": Currency(Noun("bitcoin", "bitcoins")),
    "¢": Currency(Noun("cent", "cents")),
}

_SIGNS = {
    "+/-": "plus ou moins",
    "±": "plus ou moins",
    "∓": "moins ou plus",
    "+": "plus",
    "−": "moins",
    "*": "astérisque",
    "×": "fois",
    "⋅": "fois",
    "÷": "divisé par",
    "/": "barre oblique",
    "⁄": "barre oblique",
    "∕": "barre oblique",
    "\\": "barre oblique inverse",
    "=": "égale",
    "==": "égale",
    "!=": "différent de",
    "≠": "différent de",
    "≈": "environ égal à",
    "<": "inférieur à",
    ">": "supérieur à",
    "<=": "inférieur ou égal à",
    "≤": "inférieur ou égal à",
    ">=": "supérieur ou égal à",
    "≥": "supérieur ou égal à",
    "->": "flèche",
    "=>": "flèche",
    "→": "flèche",
    "←": "flèche à gauche",
    "↑": "flèche en haut",
    "↓": "flèche en bas",
    "√": "racine carrée de",
    "∞": "infini",
    "∑": "somme",
    "∫": "intégrale",
    "%": "pour cent",
    "‰": "pour mille",
    "°": "degrés",
    "€": "euros",
    "$": "dollars",
    "£": "livres",
    "¥": "yens",
    "¢": "cents",
    "&": "et",
    "&&": "et",
    "#": "dièse",
    "@": "arobase",
    "~": "tilde",
    "^": "accent circonflexe",
    "_": "tiret bas",
    "|": "barre verticale",
    "||": "ou",
    "¦": "barre brisée",
    "¬": "non",
    "§": "paragraphe",
    "¶": "alinéa",
    "©": "copyright",
    "®": "marque déposée",
    "™": "marque commerciale",
    "№": "numéro",
    "†": "croix",
    "‡": "double croix",
    "′": "prime",
    "″": "seconde",
    "²": "au carré",
    "³": "au cube",
    "`": "accent grave",
    "µ": "micro",
}

_CONTEXTS = (
    (r"(?<!\w)[nN][°º](?= ?\d)", "numéro"),
    (r"#(?=\d)", "numéro"),
    (r"#(?=[A-Za-z])", "mot-dièse"),
    (r"~(?= ?[\d$€£])", "environ"),
    (r"(?<=[\w)])(?:\*\*|\^)(?=[\w(-])", "puissance"),
    (r"(?<=\d)\*(?= )", "étoiles"),
    (r"(?<=[\w)])\*(?=[\w(-])|(?<= )\*(?= [\d(])", "fois"),
    (r"(?<=\d)[x×](?=\d)|(?<=\d )x(?= \d)", "sur"),
    (r"(?<=\d):(?=\d)", "à"),
    (r"(?<=\d)[-–](?=[\d$€£])|(?<=\d )–(?= \d)", "à"),
    (r"(?<=\d )-(?= \d)", "moins"),
    (r"(?<![\w.)])-(?=[.\d$€£])", "moins"),
)


class _French(Language):
    def is_singular(self, number: Numeral) -> bool:
        return len(number.whole) < 16 and number.value < 2

    def time(self, hour: int, minute: int, second: int | None, *, half_day: bool) -> str:
        words = self._counted(hour, Noun("heure", "heures", feminine=True))
        if minute or second is not None:
            words += " " + self.style.words(Numeral(str(minute)))
        if second is not None:
            words += " et " + self._counted(second, Noun("seconde", "secondes", feminine=True))
        return words

    def _counted(self, count: int, noun: Noun) -> str:
        number = Numeral(str(count))
        return f"{self.style.words(number, feminine=noun.feminine)} {self.noun(noun, number)}"

    def date(self, year: str, month: int, day: int) -> str:
        number = self.style.ordinal("1") if day == 1 else self.style.words(Numeral(str(day)))
        words = f"{number} {self.months[month - 1]}"
        return f"{words} {self.style.year(int(year))}" if year else words

    def fraction(self, top: int, bottom: int) -> str:
        part = {2: "demi", 3: "tiers", 4: "quart"}.get(bottom) or self.style.ordinal(str(bottom))
        many = part if part.endswith("s") or top == 1 else part + "s"
        return f"{self.style.words(Numeral(str(top)))} {many}"

    def decade(self, digits: str) -> str | None:
        return None

    def phone(self, groups: list[str]) -> str:
        return ", ".join(
            self.style.words(Numeral(group)) if len(group) <= 2 else self.style.digits(group)
            for group in groups
        )

    def sign_name(self, char: str) -> str:
        """Unicode has English names only."""
        return ""

    def joined(self, text: str) -> str:
        """With elisions: "un million d'euros"."""
        return re.sub(r"\bde (?=[aeéh])", "d'", text)


FRENCH = _French(
    style=NumberStyle(
        code="fr",
        pattern=r"(?:\d{1,3}(?:[ '’]\d{3})+(?!\d)(?:,\d+)?|\d+(?:[.,]\d+)*|(?<![\w,])[.,]\d+)"
        r"(?!\d)",
        groups=".",
        point="virgule",
        cardinals=("spellout-cardinal-masculine", "spellout-cardinal-feminine"),
        ordinals=("spellout-ordinal-masculine", "spellout-ordinal-feminine"),
    ),
    letters="A-Za-zÀ-ÖØ-öø-ÿŒœŸ",
    signs=_SIGNS,
    contexts=_CONTEXTS,
    abbreviated={"p.": "page", "pp.": "pages", "fig.": "figure", "chap.": "chapitre"},
    months=(
        "janvier",
        "février",
        "mars",
        "avril",
        "mai",
        "juin",
        "juillet",
        "août",
        "septembre",
        "octobre",
        "novembre",
        "décembre",
    ),
    links=("h", "x"),
    units=_UNITS,
    currencies=_CURRENCIES,
    scales={
        "k": Noun("mille", "mille"),
        "M": Noun("million de", "millions de"),
        "Md": Noun("milliard de", "milliards de"),
        "Mds": Noun("milliard de", "milliards de"),
    },
    ordinal_marks={
        "er": False,
        "e": False,
        "ème": False,
        "ième": False,
        "nd": False,
        "º": False,
        "re": True,
        "ère": True,
        "nde": True,
        "ª": True,
    },
    marks={".": "point", "-": "tiret", ":": "deux-points", "?": "point d'interrogation"},
    clock=r"(\d{1,2})(?: ?h ?|:)([0-5]\d)(?::([0-5]\d)| ?min(?!\w))?",
    month_first=False,
    version_point="point",
    per="par",
    and_="et",
    power="puissance",
)
