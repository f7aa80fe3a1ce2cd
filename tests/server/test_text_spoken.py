from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from fake_voice import FakeVoice
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kazeia_server.logging_ import logger
from kazeia_server.synthesis.pieces import LiveText, TextFront, WholeText
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.text.clean import Cleaner
from kazeia_server.text.drops import Drops
from kazeia_server.text.lookahead import Lookahead
from kazeia_server.text.spoken.reader import SignReader
from kazeia_server.voices.backend import BackendInfo
from kazeia_server.voices.builtin import BuiltinVoice, describe_builtin


def spoken(text: str, language: str) -> str:
    reader = SignReader(language)
    return reader.feed(text) + reader.finish()


ENGLISH = [
    # Decimal marks and thousands.
    ("It is 22,1 degrees.", "It is twenty-two point one degrees."),
    ("It is 22.1 degrees.", "It is twenty-two point one degrees."),
    ("It is 221 degrees.", "It is two hundred twenty-one degrees."),
    ("1,000 and 1,00", "one thousand and one point zero zero"),
    (
        "1,234,567.5",
        "one million two hundred thirty-four thousand five hundred sixty-seven point five",
    ),
    ("1.234,5", "one thousand two hundred thirty-four point five"),
    ("0,125 or .5", "zero point one two five or zero point five"),
    ("12 000 km, 1'000", "twelve thousand kilometers, one thousand"),
    ("room 12 345", "room twelve three hundred forty-five"),
    ("1,2,3", "one, two, three"),
    ("007", "zero zero seven"),
    ("10000000000000000", "one" + " zero" * 16),
    # Versions and addresses.
    ("1.0.0, v2.10.3.", "one point zero point zero, v two point ten point three."),
    ("192.168.1.1", "one hundred ninety-two point one hundred sixty-eight point one point one"),
    ("bob@example.org", "bob at example dot org"),
    ("b_1.x+y@mail.example.com.", "b underscore one dot x plus y at mail dot example dot com."),
    ("example.com/a-b?c=5", "example dot com slash a dash b question mark c equals five"),
    ("file.txt, README.md", "file dot txt, README dot md"),
    ("/usr/bin C:\\x", "slash usr slash bin C: backslash x"),
    # Signs.
    ("2*3*4", "two times three times four"),
    ("2 + 2 = 4, 5 - 3, 5−3", "two plus two equals four, five minus three, five minus three"),
    ("6/7 of it, 8 ÷ 2 × 3", "six sevenths of it, eight divided by two times three"),
    ("a < b > c <= d", "a less than b greater than c less than or equal to d"),
    ("±5, ~5, -5", "plus or minus five, about five, minus five"),
    (
        "2^10, x**2, x², 10⁶",
        "two to the power of ten, x to the power of two, x squared, ten to the power of six",
    ),
    ("50% of R&D", "fifty percent of R and D"),
    ("#1, #tag, C#, @me", "number one, hashtag tag, C sharp, at me"),
    ("a|b a_b a\\b ~ ^", "a vertical bar b a underscore b a backslash b tilde caret"),
    ("5* hotel*", "five star hotel asterisk"),
    ("1920x1080, 3 x 4", "nineteen twenty by one thousand eighty, three by four"),
    ("© § ™ № 5", "copyright section trademark number five"),
    ("∞ ₪ ♭", "infinity new sheqel music flat"),
    ("π, 5 Ω", "pi, five ohms"),
    # Money, units.
    (
        "$5.50, $1, 1 €, £0.99",
        "five dollars and fifty cents, one dollar, one euro, ninety-nine pence",
    ),
    (
        "$5 million, €2bn, 3,50 EUR",
        "five million dollars, two billion euros, three euros and fifty cents",
    ),
    ("1 km, 5km, 90 km/h", "one kilometer, five kilometers, ninety kilometers per hour"),
    (
        "22 °C, 1°, 5 kB, 3 m²",
        "twenty-two degrees Celsius, one degree, five kilobytes, three square meters",
    ),
    # Times, dates, ranges, ordinals, fractions.
    ("at 22:15, 3:05 and 3:00", "at twenty-two fifteen, three oh five and three o'clock"),
    ("3:00 p.m., 14:00", "three p.m., fourteen hundred"),
    ("10:30am, 3:00PM, 10:30ms", "ten thirty am, three PM, ten to thirty milliseconds"),
    ("Call (555) 123-4567.", "Call five five five, one two three, four five six seven."),
    ("01:02:03 16:9", "one oh two and three seconds sixteen to nine"),
    (
        "2024-03-15, 12/31/2024",
        "March fifteenth, twenty twenty-four, December thirty-first, twenty twenty-four",
    ),
    (
        "31.12.2024, 99/99/2024",
        "December thirty-first, twenty twenty-four, "
        "ninety-nine slash ninety-nine slash twenty twenty-four",
    ),
    ("March 3, 1905", "March third, nineteen oh-five"),
    ("5-10, 1914–1918", "five to ten, nineteen fourteen to nineteen eighteen"),
    ("1st, 22nd", "first, twenty-second"),
    ("1/2, 3/4, 2½, 24/7", "one half, three quarters, two and one half, twenty-four slash seven"),
    ("the 1990s, 80s", "the nineteen nineties, eighties"),
    (
        "+49 30 12, 555-1234",
        "plus four nine, three zero, one two, five five five, one two three four",
    ),
    ("No. 5 on pp. 7", "number five on pages seven"),
    ("A4, mp3, COVID-19", "A four, mp three, COVID nineteen"),
    # What is not a sign.
    ("No. It's well-known; e.g. the U.S., Ph.D.", "No. It's well-known; e.g. the U.S., Ph. D."),
    ("One – two (three)", "One — two (three)"),
    ("end.Next", "end. Next"),
    ("Łódź, café", "Lódz, café"),
]

FRENCH = [
    ("Il fait 22,1 degrés.", "Il fait vingt-deux virgule un degrés."),
    ("22.1 et 221", "vingt-deux virgule un et deux cent vingt-et-un"),
    ("1.000, 12 000, 1.234,5", "mille, douze mille, mille deux cent trente-quatre virgule cinq"),
    ("22:15, 22h15", "vingt-deux heures quinze, vingt-deux heures quinze"),
    ("22 h 05, 1 h", "vingt-deux heures cinq, une heure"),
    ("3,50 €, 1,01 €", "trois euros et cinquante centimes, un euro et un centime"),
    ("5 M€, 1 M$", "cinq millions d'euros, un million de dollars"),
    ("50 %, 21 min", "cinquante pour cent, vingt-et-une minutes"),
    ("1er, 1re, 3e", "premier, première, troisième"),
    ("le 31/12/2024", "le trente-et-un décembre deux mille vingt-quatre"),
    ("01 23 45 67 89", "zéro un, vingt-trois, quarante-cinq, soixante-sept, quatre-vingt-neuf"),
    ("a@b.fr, 1.0.0", "a arobase b point fr, un point zéro point zéro"),
    ("90 km/h, -5 °C", "quatre-vingt-dix kilomètres par heure, moins cinq degrés Celsius"),
    ("n° 5, 1/2, 2*3", "numéro cinq, un demi, deux fois trois"),
    ("C'est l'été ; œuvre", "C'est l'été ; œuvre"),
]


@pytest.mark.parametrize(("text", "expected"), ENGLISH)
def test_english(text: str, expected: str) -> None:
    assert spoken(text, "english") == expected


@pytest.mark.parametrize(("text", "expected"), FRENCH)
def test_french(text: str, expected: str) -> None:
    assert spoken(text, "french") == expected


SIGNS = """
22 , . 1 000 $ € % km km/h / - – : 15 h x 2 ½ ² ° °C C # * ** ( ) " ' No. March 3 p.m. th st @ + <
example .org ? = > | _ \\ ~ ^ the 1990 s M million é 你 ⁶ ﬁ 49 ́ 🙂
"""
SCRAPS = st.one_of(
    st.sampled_from([*SIGNS.split(), "\n"]),
    st.just(" "),
    st.characters(),
)
TEXTS = st.lists(SCRAPS, max_size=40).map("".join)


@given(TEXTS, st.lists(st.integers(0, 200), max_size=6), st.sampled_from(["english", "french"]))
@example("It is 22,1 degrees", [9], "english")
@example("at 22 h 15 and", [4, 6], "french")
@example("1" * 700 + " km", [5, 300], "english")
@settings(deadline=None)
def test_cutting_the_text_changes_nothing(text: str, cuts: list[int], language: str) -> None:
    reader = SignReader(language)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[start:stop] for start, stop in pairwise(places)]
    assert "".join(map(reader.feed, parts)) + reader.finish() == spoken(text, language)


@given(TEXTS, st.sampled_from(["english", "french"]))
@settings(deadline=None)
def test_nothing_unreadable_is_left_that_was_not_named(text: str, language: str) -> None:
    drops = Drops()
    reader = SignReader(language, drops)
    out = reader.feed(text) + reader.finish()
    letters = "A-Za-zÀ-ÖØ-öø-ÿŒœŸ"
    for char in set(re.sub(rf"[{letters}\s.,;:!?…—()'’-]", "", out)):
        assert f"U+{ord(char):04X} " in str(drops), (text, out)


def test_a_plain_word_leaves_at_once_and_a_number_waits_for_what_it_counts() -> None:
    reader = SignReader("english")
    given_out = [reader.feed(part) for part in ("Well ", "the ", "5", "5 ", "km", " and", " ")]
    assert given_out == ["Well ", "the ", "", "", "", "fifty-five kilometers ", "and "]
    assert reader.feed("22,") == ""
    assert reader.flush() == "twenty-two,"  # what was flushed ends there
    assert reader.feed("1 ") + reader.finish() == "one "


@pytest.mark.parametrize(
    "unit", ["1", "1 ", "+1", "1.", "a.", "a@", "$", "1/", "-", "1 000 ", "x²"]
)
def test_work_is_linear(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    find = Lookahead.find

    def counting(self: Lookahead, pattern: re.Pattern[str], index: int, most: int) -> int:
        nonlocal looks
        looks += most
        return find(self, pattern, index, most)

    monkeypatch.setattr(Lookahead, "find", counting)
    spent = []
    for size in (2000, 4000):
        looks = 0
        spoken(unit * (size // len(unit)), "english")
        spent.append(looks)
    assert spent[1] < 2.5 * spent[0] + 2000


BUILT_IN = describe_builtin()


def pieces_of(text: str, info: BackendInfo, *, clean: bool = True) -> str:
    front = TextFront(info, clean=clean, split="auto", language="auto", live=False)
    source = WholeText(text, front)
    parts = []
    while (piece := source.next()) is not None:
        parts.append(piece.complete())
    return " ".join(parts)


def test_only_a_voice_that_needs_words_is_given_words() -> None:
    text = "It is 22,1 degrees, see **bob@example.org**."
    assert pieces_of(text, FakeVoice().info) == "It is 22,1 degrees, see bob@example.org."
    expected = "It is twenty-two point one degrees, see bob at example dot org."
    assert pieces_of(text, BUILT_IN) == expected
    assert not BUILT_IN.reads_symbols


@pytest.mark.parametrize("cut", range(1, 25))
def test_live_text_is_read_as_the_whole_is(cut: int) -> None:
    text = "It is 22,1 degrees at 12:30 in 2024. Then 5 km/h."
    front = TextFront(BUILT_IN, clean=True, split="auto", language="auto", live=False)
    live = LiveText(front, 5.0)
    for part in (text[: 2 * cut], text[2 * cut :]):
        live.push(part)
    live.finish()
    parts = []
    while (piece := live.next()) is not None:
        parts.append(piece.complete())
    assert " ".join(parts) == pieces_of(text, BUILT_IN)


# What is dropped


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What is logged at level debug, however logging is set up."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.DEBUG:
                lines.append(record.getMessage())

    handler, level = Keep(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_what_is_dropped_is_named_once_an_utterance(logged: list[str]) -> None:
    pieces_of("Hi 🙂 you 🙂. " * 40 + "**b** [a](b) «你» <!-- x -->\n```\nc\n```\n", BUILT_IN)
    (line,) = logged
    assert line.startswith("not spoken of the text: ")
    named = line.partition(": ")[2].split(", ")
    assert len(named) == len(set(named))
    assert {
        "U+1F642 SLIGHTLY SMILING FACE",
        "U+002A ASTERISK",
        "the address or label of a link",
        "U+00AB LEFT-POINTING DOUBLE ANGLE QUOTATION MARK",
        "U+4F60 CJK UNIFIED IDEOGRAPH-4F60",
        "a comment",
        "a fenced code block",
    } <= set(named)


def test_nothing_dropped_nothing_said(logged: list[str]) -> None:
    pieces_of("Plain words, 22.1 of them.", BUILT_IN)
    assert logged == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("# a", "U+0023 NUMBER SIGN"),
        ("- a", "U+002D HYPHEN-MINUS"),
        ("1. a", "the number of a list item"),
        ("> a", "U+003E GREATER-THAN SIGN"),
        ("| a |", "U+007C VERTICAL LINE"),
        ("---\na", "a rule or table border"),
        ("~~~\nb\n~~~\na", "a fenced code block"),
        ("a **b**", "U+002A ASTERISK"),
        ("a _b_", "U+005F LOW LINE"),
        ("a ~~b~~", "U+007E TILDE"),
        ("a `b`", "U+0060 GRAVE ACCENT"),
        ("a \\* b", "U+005C REVERSE SOLIDUS"),
        ("a!!!!!!", "U+0021 EXCLAMATION MARK"),
        ("a ----- b", "U+002D HYPHEN-MINUS"),
        ("a\u0301\u0301\u0301\u0301\u0301\u0301", "U+0301 COMBINING ACUTE ACCENT"),
        ("a \u200b b", "U+200B ZERO WIDTH SPACE"),
        ("a\u200db", "U+200D ZERO WIDTH JOINER"),
        ("a \U0001f600", "U+1F600 GRINNING FACE"),
        ("a ©\ufe0f b", "U+00A9 COPYRIGHT SIGN"),
        ("a 1\ufe0f\u20e3 b", "a keycap"),
        ("a https://example.com/b", "parts of a web address"),
        ("a [b](c)", "the address or label of a link"),
        ("a <b>b</b>", "a tag"),
        ("a <script>b</script>", "an element with what it holds"),
        ("a <!-- b -->", "a comment"),
        ("a <me@example.org>", "angle brackets"),
        ("a b", ""),
        ("2*3 a|b #1", ""),
    ],
)
def test_what_the_clean_up_drops(text: str, named: str) -> None:
    drops = Drops()
    cleaner = Cleaner(drops)
    cleaner.feed(text)
    cleaner.finish()
    assert named in str(drops)
    assert bool(drops) == bool(named)


# What is heard


@pytest.fixture(scope="module")
def voice() -> BuiltinVoice:
    return BuiltinVoice()


CHARACTERS = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0x100))] + list(
    "–—―‐‑‘’‚“”„«»‹›…•·†‡‰′″€₣₤₧₩₪₫₱₹₺₽₿№℃℉™−≈≠≤≥∞√∑∏∂∫∆Ωµπλ→←↑↓⇒⅓⅞⁴⁄ĄčğőŒœşžÿ"
)


@pytest.mark.parametrize("frame", ["go {} now", "go{} now", "go {}now", "5{}6", "5 {} 6", "go {}5"])
def test_every_character_is_spoken_a_pause_or_named(voice: BuiltinVoice, frame: str) -> None:
    speaker = voice._speaker("heart")

    def ids(text: str) -> list[int]:
        return [number for phrase in speaker.phonemize(text) for number in speaker.ids(phrase)]

    silent = []
    for char in CHARACTERS:
        drops = Drops()
        reader = SignReader("english", drops)
        said = reader.feed(frame.format(char)) + reader.finish()
        without = [spoken(frame.format(other), "english") for other in ("", " ")]
        if ids(said) in [ids(text) for text in without] and not drops:
            silent.append(char)
    # A hyphen or a slash of words joins them; an apostrophe belongs to its word.
    assert set(silent) <= set("-‐‑'’")


def audio(voice: BuiltinVoice, text: str) -> bytes:
    stream = voice.open(SynthesisRequest(text=pieces_of(text, BUILT_IN)))
    chunks = []
    while (chunk := stream.read()) is not None:
        chunks.append(chunk.pcm)
    return np.concatenate(chunks).tobytes()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("It is 22,1 degrees", "It is 221 degrees"),
        ("It is 22.1 degrees", "It is 221 degrees"),
        ("Take 1.0.0 now", "Take 100 now"),
        ("At 192.168.1.1 now", "At 19216811 now"),
        ("To bob@example.org", "To bob@exampleorg"),
        ("It is 2*3*4", "It is 234"),
        ("It is -5", "It is 5"),
        ("It is a/b", "It is a b"),
    ],
)
def test_texts_that_differ_are_heard_to_differ(voice: BuiltinVoice, one: str, other: str) -> None:
    assert audio(voice, one) != audio(voice, other)
    assert audio(voice, one) == audio(voice, one)
