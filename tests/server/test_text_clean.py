from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kazeia_server.text.characters import has_content, is_speakable
from kazeia_server.text.clean import Cleaner
from kazeia_server.text.lookahead import Lookahead, NeedMoreText


def clean_text(text: str) -> str:
    cleaner = Cleaner()
    return cleaner.feed(text) + cleaner.finish()


# What is whole prose must come through as it is.
PROSE = [
    "Dr. Smith paid $50 at 3:00 p.m. (half price!) – why? \"Because,\" he said, 'it's 40–60°C.'",
    "北京的天气很好！你说：“我们去公园吧。”好的——走……3.5％，《红楼梦》、两本。",
    "こんにちは。「元気？」と聞いた。コーヒーを２杯、お願いします〜。",
    "안녕하세요. 오늘 날씨가 정말 좋네요! 3시 30분에 만날까요?",
    "Das kostet z. B. 3,50 €; „Wirklich?“, fragte er. Am 3. Oktober, »so« – ja.",
    "« Bonjour ! » dit-il ; ça va ? C'est-à-dire : l'été, 10 % de M. Dupont… Voilà !",
    "«Привет!» – сказал он. Это т.е. хорошо; № 5, 10 руб. А. С. Пушкин – поэт…",
    "O Sr. João disse: “Não!” À 1.ª vez, custou R$ 5,00.",
    "¿¡Qué dices!? ¡Hola! El Sr. Núñez llegó a las 9:30; «vale», dijo.",
    "L'avv. Rossi è qui: «Perché no?» Costa 5 €, cioè l'1%.",
    "1 + 1 = 2, 2*3*4, 5 * 3, a < b, a<b, b > c, x <3, 50% & more, R&D, AT&T, 5* hotel, x**2",
    "wan22, 135-4567-8900, 9:30PM, #1, C#, C++, F#, @name, snake_case, a_b_c, ~5 km, =), :-)",
    "C:\\Users\\me\\file_name.txt, /usr/bin/env, ../a, and/or, a|b, me.you+x@example.org, q.v.",
    "arr[0], f(x), [sic], List<String>, vector<int>, {a: b}, it's -5, +49 30 1234, 2^10, R&D; etc.",
    "“Well” -- she said -- ‘fine’... ok?! 1st, 2nd; №7 § 5 ¶ † * note",
    "हिन्दी क्\u200dष, می\u200cخواهم, ไทย, עִבְרִית, Việt Nam",
]

MARKUP = [
    ("# Title\nText", "Title.\n\nText"),
    ("### What now?\n\nText", "What now?\n\nText"),
    ("## 标题 ##\n正文", "标题。\n\n正文"),
    ("Title\n=====\nText\n-----\nMore", "Title.\n\nText.\n\nMore"),
    ("#hashtag #1", "#hashtag #1"),
    ("**bold** *it* __b__ _i_ ***both*** ~~gone~~", "bold it b i both gone"),
    ("**bold**ly, **Note:** *a*, (**b**)", "boldly, Note: a, (b)"),
    ("这是**重点**，*强调*了。**注意：**好", "这是重点，强调了。注意：好"),
    ("*unclosed and 2*3*4 _too", "unclosed and 2*3*4 too"),
    ("say `a*b*c` and ``x`y`` now", "say a*b*c and x`y now"),
    ("```python\nx = 1\n# no\n```\nAfter", "After"),
    ("Before\n~~~\ncode\n```\n~~~\n\nAfter", "Before.\n\nAfter"),
    ("Before\n```\nnever closed", "Before"),
    ("```inline``` here", "inline here"),
    ("- milk\n- eggs!\n* bread\n+ tea\n• jam", "milk.\neggs!\nbread.\ntea.\njam."),
    ("Fruits\n- apple\n  pie\n\nNext", "Fruits.\napple pie.\n\nNext"),
    ("To do:\n- [ ] this\n- [x] that", "To do:\nthis.\nthat."),
    ("1. One\n2) Two\n   1. Sub\n3. Three", "One.\nTwo.\nSub.\nThree."),
    ("3. Oktober war gut", "3. Oktober war gut"),
    ("1. Mai ist Feiertag", "1. Mai ist Feiertag"),
    ("2024. Then", "2024. Then"),
    ("-5 degrees", "-5 degrees"),
    ("> quoted\n> text\n\nplain", "quoted\ntext\n\nplain"),
    (">5 is more", ">5 is more"),
    ("| a | b |\n|---|:-:|\n| 1 | 2 |\n| x | |", "a, b.\n1, 2.\nx."),
    ("one\n\n---\n\ntwo\n***\nthree", "one.\n\ntwo.\n\nthree"),
    ('[text](http://x.y/z "t") and ![alt *text*](a(b).png)', "text and alt text"),
    ("[**bold** link](<a b>) [ref][1] note[^2] [![b](i)](l)", "bold link ref note b"),
    ("![x](data:image/png;base64," + "A" * 3000 + ") after", "x after"),
    ("[not a link] (x) [a](b c)", "[not a link] (x) [a](b c)"),
    ("\\*not bold\\* \\_x\\_", "*not bold* _x_"),
]

ADDRESSES = [
    ("See https://www.example.com/a_(b)?q=1#x. Then", "See example.com. Then"),
    ("(http://example.com/x), www.example.org!", "(example.com), example.org!"),
    ("请看https://example.com/路径，谢谢", "请看example.com路径，谢谢"),
    ("去https://example.com。好", "去example.com。好"),
    ("<https://a.example/b> <me@example.org>", "a.example me@example.org"),
    ("ftp://user:pw@files.example.net:21/pub HTTPS://EXAMPLE.com", "files.example.net EXAMPLE.com"),
    ("mailto:me@example.org or me@example.org.", "me@example.org or me@example.org."),
    ("**https://example.com/a**", "example.com"),
    ("file:///etc/hosts", "/etc/hosts"),
    ("the http and www. things", "the http and www. things"),
    ("example.com/a and http", "example.com/a and http"),
]

HTML = [
    ("<p>One <b>two</b></p><p>three</p>", "One two.\n\nthree.\n\n"),
    ("<h1>Title</h1>Text<br>more", "Title.\n\nText\nmore"),
    ("<ul><li>a</li><li>b</li></ul>c", "a.\nb.\n\nc"),
    ("<table><tr><th>a</th><td>b</td></tr></table>", "a, b.\n\n"),
    ("a<!-- hidden\n\n -->b <!DOCTYPE html><?xml version='1'?>c", "ab c"),
    ("<script type='x'>var a = '<b>';</script >ok<STYLE>p{}</STYLE>", "ok"),
    (
        "<speak>One <break time=\"1s\"/> two <say-as interpret-as='x'>3</say-as></speak>",
        "One \n\ntwo 3",
    ),
    ("<speak><s>One</s><s>two</s></speak>", "One.\ntwo.\n"),
    ("<a href='x' title=\"y\">link</a> <input disabled>", "link "),
    ("&amp; &#8364; &#x41;&nbsp;&lt;b&gt; &copy; &unknown; &", "& € A <b> © &unknown; &"),
    ("a <b and c> d <i", "a <b and c> d <i"),
    ("<unknown>x</unknown>", "<unknown>x</unknown>"),
    ('<img src="' + "A" * 3000 + '">x', "x"),
    ("a\n<b", "a\n<b"),
]

CHARACTERS = [
    ("Great👍! Hi👋there 👩‍👩‍👧 🇩🇪 1️⃣ #⃣ ☎️ ok", "Great! Hi there ok"),
    ("👨🏽‍💻 é 🏴󠁧󠁢󠁥󠁮󠁧󠁿 x", "é x"),
    ("© and ©️ ™ ❤️ ♥ → ♯", "© and ™ → ♯"),
    (
        "a\u200bb\u200dc\u2060d\ufeffe\u202ef\u2066g\u00adh\x00i\x07j\x7fk\ud800l\ue000m\ufffd",
        "abcdefghijklm",
    ),
    ("𝐁𝐨𝐥𝐝 𝟙", "Bold 1"),
    ("z" + "\u0301" * 50 + "!", "z" + "\u0301" * 4 + "!"),
    ("\u0301x", "x"),
    ("wow!!!!!! so...... ?!?!?! ,,,,", "wow!!! so... ?!? ,,,"),
    ("a ---- b ======= c ____ d ####", "a b c d "),
    ("好！！！！！！。", "好！！！"),
    ("a  b\t\tc\u00a0\u3000d\r\ne\rf\u2028g", "a b c d\ne\nf\ng"),
    ("\n\n \n x\n \n\n\n\ny", "x\n\ny"),
    ("x ━━━ ■ │ y ▶", "x y "),
]


@pytest.mark.parametrize("text", PROSE)
def test_plain_prose_stays_as_it_is(text: str) -> None:
    assert clean_text(text) == text


@pytest.mark.parametrize(("text", "spoken"), MARKUP + ADDRESSES + HTML + CHARACTERS)
def test_cleaned(text: str, spoken: str) -> None:
    assert clean_text(text) == spoken


def test_spaces_of_any_kind_become_plain_ones() -> None:
    assert clean_text("«\u00a0Oui\u202f!\u00a0» 10\u202f000") == "« Oui ! » 10 000"


@pytest.mark.parametrize(
    ("pieces", "given_out"),
    [
        (["Hel", "lo ", "wor", "ld. "], ["Hel", "lo ", "wor", "ld. "]),
        (["你", "好。", "再"], ["你", "好。", "再"]),
        (["- milk", " and", " eggs\n", "x"], ["milk", " and", " eggs", ".\nx"]),
        (["h", "e ", "htt", "ps", "x"], ["", "he ", "", "", "httpsx"]),
        (["a **", "b", "** c"], ["a ", "b", " c"]),
        (["[a", "](", "x", ") b"], ["", "", "", "a b"]),
        (["1", "\ufe0f", "\u20e3x"], ["", "", "x"]),
        (["```\nx", "\n``", "`\ny"], ["", "", "y"]),
    ],
)
def test_text_leaves_as_soon_as_it_is_decided(pieces: list[str], given_out: list[str]) -> None:
    cleaner = Cleaner()
    assert [cleaner.feed(piece) for piece in pieces] == given_out


@pytest.mark.parametrize(
    "begin",
    ["[", "<a ", "<a.", "&", "![", "[x](", '[x](y "', "http://", "- [", "`", "https", "<!", "|-"],
)
def test_what_is_held_is_bounded(begin: str) -> None:
    cleaner = Cleaner()
    for _ in range(40):
        cleaner.feed(begin + "a" * 60)
        assert len(cleaner._held) <= 1000


def test_flush_gives_out_what_is_held_and_the_text_goes_on() -> None:
    cleaner = Cleaner()
    assert cleaner.feed("see [this") == "see "
    assert cleaner.flush() == "[this"
    assert cleaner.feed("- **x** 3") == "- x "
    assert cleaner.flush() == "3"
    assert cleaner.feed(" y\n- item") == " y.\nitem"
    assert cleaner.flush() == ""
    assert cleaner.finish() == "."


NASTY = [
    *"ab1Z 中あ가é\u0301 \n\r\t.,!?:;-*_~`#|>+=\\[]()<>\"'&/%@{}^$…。！“”«»¿",
    "\n\n", "\r\n", "**", "***", "```", "~~", "---", "====", "# ", "- ", "1. ", "2) ", "> ", "| ",
    "[a](", "](b)", "![", "[^1]", "http://", "https://www.", "www.", "a.bc/", "mailto:", "x@y.de",
    "<b>", "</b>", "<p>", "<br/>", "<break/>",
    "<!--", "-->", "<script>", "</script>", "<td>", "<a href=",
    "<speak>", "<s>", "&amp;", "&#", "&lt;", ";",
    "👍", "👩‍👧", "🇩", "\ufe0f", "\u20e3", "©", "\u200d",
    "\u200b", "\x00", "\ud800", "ک", "\u200c", "word", "Mai", "data:", "\u0600", "𝐀", "☑", "・",
]  # fmt: skip
nasty_text = st.lists(st.sampled_from(NASTY), max_size=40).map("".join)


@st.composite
def cut_text(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(st.one_of(nasty_text, nasty_text, st.text(max_size=60)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(cut_text())
@settings(max_examples=1500, deadline=None)
@example(("a\r\nb", ["a\r", "\nb"]))
def test_cutting_the_text_changes_nothing(case: tuple[str, list[str]]) -> None:
    text, pieces = case
    whole = clean_text(text)
    cleaner = Cleaner()
    assert "".join(map(cleaner.feed, pieces)) + cleaner.finish() == whole
    cleaner = Cleaner()
    assert "".join(map(cleaner.feed, text)) + cleaner.finish() == whole


@pytest.mark.parametrize(
    "text", [text for text, _ in MARKUP + ADDRESSES + HTML + CHARACTERS] + PROSE
)
def test_one_character_at_a_time_changes_nothing(text: str) -> None:
    cleaner = Cleaner()
    assert "".join(map(cleaner.feed, text)) + cleaner.finish() == clean_text(text)


@given(st.one_of(nasty_text, st.text(max_size=200)))
@settings(max_examples=800, deadline=None)
def test_the_output_is_tidy(text: str) -> None:
    spoken = clean_text(text)
    assert not re.search(r"  |\n\n\n|^\s|\n ", spoken)
    assert not re.search(r"[^\S \n]", spoken)
    for char in spoken:
        assert char in "\n\u200c\u200d" or unicodedata.category(char)[0] != "C"
    spoken.encode()


@given(
    st.lists(
        st.sampled_from(["Hello", "wörld", "они", "北京", "l'été", "42", "a_b", "3.5"]), min_size=1
    )
)
@settings(deadline=None)
def test_words_stay(words: list[str]) -> None:
    assert clean_text(" ".join(words)) == " ".join(words)


HOSTILE = [
    "a", "1", "a.", "*", "**a", "_", "[",
    "![", "[x]", "[[x]", "[a](", "[a](b", "<", "<a ", "<a href='",
    "<!--", "<script>", "(", "`", "```\n", "&", "&a", "&#", "http://", "http://a/(", "http://a/.",
    "\\", "#", "# \n", "- ", "1. ", "> ", "|", "| \n",
    "~", "=", "\n", "\r", " ", "\u0301", "👩‍", "\u200d",
    "\ufe0f", "1\ufe0f", "<b><", "</p>", "-*", "!", ".", "\x00", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
def test_work_is_linear(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the steps and the characters looked at, which do not depend on the machine."""
    work = 0

    def counted_at(self: Lookahead, index: int) -> str:
        nonlocal work
        work += 1
        if index < self.size:
            return self.text[index]
        if self.final:
            return ""
        raise NeedMoreText

    def counted_find(self: Lookahead, pattern: re.Pattern[str], index: int, most: int) -> int:
        nonlocal work
        found = plain_find(self, pattern, index, most)
        stop = min(index + most, self.size) if found < 0 else found
        work += (stop - index) // 16 + 1  # a search passes over characters faster than a step
        return found

    def counted_step(self: Cleaner, text: Lookahead, position: int) -> int:
        nonlocal work
        work += 1
        return plain_step(self, text, position)

    plain_find, plain_step = Lookahead.find, Cleaner._step
    monkeypatch.setattr(Lookahead, "at", counted_at)
    monkeypatch.setattr(Lookahead, "find", counted_find)
    monkeypatch.setattr(Cleaner, "_step", counted_step)
    text = (unit * 50_000)[:50_000]
    clean_text(text)
    assert work < 60 * len(text)


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_one_character_at_a_time(unit: str) -> None:
    text = (unit * 4000)[:4000]
    cleaner = Cleaner()
    assert "".join(map(cleaner.feed, text)) + cleaner.finish() == clean_text(text)


@pytest.mark.parametrize(
    "text", ["a", "9", "é", "你", "%", "&", "+", "=", "€", "$", "½", "°", "√", "...4"]
)
def test_speakable(text: str) -> None:
    assert is_speakable(text)


@pytest.mark.parametrize(
    "text", ["", " ", "...", "***", "🙂", "👍🏽", "—", "?!", "\u200d", "«»", "\u3164", "###"]
)
def test_not_speakable(text: str) -> None:
    assert not is_speakable(text)


@pytest.mark.parametrize(
    "text", ["...", "***", "🙂", "```\nx = 1\n```", "<br/>", "---", "# ", "| |"]
)
def test_text_that_becomes_unspeakable(text: str) -> None:
    assert not is_speakable(clean_text(text))


@pytest.mark.parametrize(
    "text", ["", " \t\n", "\u200b\u200d", "\u202e", "\0", "\ufeff", "\u3000", "\u3164"]
)
def test_invisible_text_has_no_content(text: str) -> None:
    assert not has_content(text)


@pytest.mark.parametrize("text", ["a", ".", " é ", "你", "🙂"])
def test_visible_text_has_content(text: str) -> None:
    assert has_content(text)
