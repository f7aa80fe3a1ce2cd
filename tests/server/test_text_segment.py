from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kazeia_server.text.characters import columns, is_speakable
from kazeia_server.text.clean import Cleaner
from kazeia_server.text.pieces import PiecePacker, Split, Unit
from kazeia_server.text.segment import PieceEnd, Segmenter
from kazeia_server.text.sentence_ends import end_kind

Event = str | PieceEnd


def joined(events: Iterable[Event]) -> list[Event]:
    """Adjacent strings made one."""
    result: list[Event] = []
    for event in events:
        if isinstance(event, str) and result and isinstance(result[-1], str):
            result[-1] += event
        else:
            result.append(event)
    return result


def events_of(text: str, split: Split, first_limit: int = 1000, limit: int = 1000) -> list[Event]:
    segmenter = Segmenter(split, first_limit=first_limit, limit=limit)
    return joined(segmenter.feed(text) + segmenter.finish())


def pieces_of(text: str, split: Split, first_limit: int = 1000, limit: int = 1000) -> list[str]:
    return [event for event in events_of(text, split, first_limit, limit) if isinstance(event, str)]


def sentences(text: str) -> list[str]:
    return pieces_of(text, "sentence")


# "|" marks where a sentence ends; the spaces around it are not part of the text where it says "^".
BY_LANGUAGE = {
    "english": [
        "Hello there.|How are you?|Fine!",
        "Dr. Smith met J. Doe and Mrs. K. L. Gray.|They talked.",
        "Meet at 3:00 p.m. tomorrow, e.g. at 9:30PM.|OK?",
        "It ended at 5 p.m.|Then we left.",
        "The U.S. Army, etc. came.|Apples, pears, etc.|Then more.",
        'He said "Go!"|Then he left.|("Why?")|Nobody knew.',
        '"Really?" she asked.|"Yes!"|(So it was.)|End.',
        "Pi is 3.14, v. 2.0.1 of No. 5 is on p. 7, Fig. 2.|Next.",
        "I said no.|Then yes.|It is a work of art.|See?",
        "So did I.|Then came Bob.|I. Newton wrote it.",
        "Wait... what?!|Well... yes…|Right.",
        "1. First item.|2. Second item.",
        "See example.com/a.b or v1.2.3. now.|Approx. five by St. John, vs. Prof. X.",
        "hello.|how are you?|i am fine, e.g. today.|good...so",
        "She works at Acme Inc. in Oct. 2024.|He left Acme Inc.|Then he slept.",
    ],
    "german": [
        "Das ist z. B. gut, d.h. sehr gut.|Er ging.",
        "Am 3. Oktober kam Dr. Müller, der 2. Mann, im 19. Jahrhundert.|Ja.",
        "Sonntag, 1. Mai, bzw. Nr. 5 auf S. 3, Abs. 2.|Ende.",
        "„Wirklich?“, fragte er.|„Ja.“|»Nein!« sagte sie.|So usw.|Dann.",
        "Es kostet 5 Mio. Euro, ca. 3,50 € inkl. MwSt. heute.|Gut.",
    ],
    "french": [
        "M. Dupont et Mme. Roy sont là.|« Bonjour ! » dit-il.|Ça va ?|Oui !",
        "« Oui ! »|Il part.|(Non ?)|Bon… d'accord.|Voilà…|Fin.",
        "C.-à-d. cf. p. 3, etc. et av. J.-C. aussi.|Bien.",
        "Il dit :\u00a0«\u00a0Ah\u00a0!\u00a0»|Puis rien.",
    ],
    "spanish": [
        "¿Qué tal?|¡Bien!|El Sr. López y la Dra. Ruiz viven en EE. UU. ahora.|Sí.",
        "¡Hola! ¿qué tal?|Gracias a Ud.|Hasta luego, p. ej. mañana.|Dije que no.|Luego sí.",
        "«¿Vienes?» preguntó.|—Sí.|—Bueno.",
    ],
    "portuguese": [
        "O Sr. Silva chegou.|A Dra. Ana também, às 9h30.|Não!",
        "Vive na Av. Paulista, n.º 5, pág. 3, etc.|Depois saiu.|É o que é.|Fim.",
    ],
    "italian": [
        "Il sig. Rossi e l'avv. Bianchi sono qui.|Bene.|Perché?",
        "Il dott. Verdi, ecc. ecc. e così via.|Costa 3,50 €.|Così è.|Poi basta.",
    ],
    "russian": [
        "Это т.е. хорошо.|А. С. Пушкин жил в г. Москве, на ул. Мира, д. 5.|Да.",
        "– Привет! – сказал он.|– Как дела?|– Хорошо.",
        "Это было в 2020 г.|Потом 5 тыс. руб. и т. д.|Конец.|Это он и я.|Вот.",
        "«Да!» – сказал проф. Иванов.|«Нет.»|Вот и др.|Всё.",
    ],
    "chinese": [
        "你好。^|今天天气很好！^|“真的吗？”^|他问。^|是的……^走吧，好吗？！^|好",
        "他说：\"好。\"^|然后走了。^|\"你好。\"^|圆周率是3.14，用Python写。^|完!^|对?^|嗯",
        "（完。）^|《书》。^|No.1在这里。^|Hello!^|你好",
    ],
    "japanese": [
        "こんにちは。^|「元気？」と聞いた。^|「はい。」^|行こう！^|えっ？！^|３．１４です。^|終",
        "コーヒーを飲む。^|Ver. 2.0です。^|「そう。」って言った。^|はい",
    ],
    "korean": [
        "안녕하세요.|오늘 3시 30분에 만날까요?|네!|“좋아요.”|그는 갔다.",
        "가격은 3.5만 원입니다...|정말요?|네",
    ],
}  # fmt: skip

CASES = [pytest.param(text, id=f"{name}-{n}") for name, texts in BY_LANGUAGE.items()
         for n, text in enumerate(texts)]  # fmt: skip


@pytest.mark.parametrize("marked", CASES)
def test_sentences_of_ten_languages(marked: str) -> None:
    text = marked.replace("^|", "").replace("^", "").replace("|", " ")
    expected = [s.replace("^", "").replace("\u00a0", " ") for s in marked.split("|")]
    assert sentences(text) == expected


@pytest.mark.parametrize("marked", CASES)
def test_one_character_at_a_time(marked: str) -> None:
    text = marked.replace("^|", "").replace("^", "").replace("|", " ")
    for split in ("sentence", "auto"):
        segmenter = Segmenter(split, first_limit=30, limit=60)
        events = [event for char in text for event in segmenter.feed(char)] + segmenter.finish()
        assert joined(events) == events_of(text, split, 30, 60)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One.\ntwo.", ["One.", "two."]),
        ("Dr.\nSmith is here.", ["Dr. Smith is here."]),
        (
            "This is a line of prose that an editor has wrapped\nand that goes on here. Yes.",
            ["This is a line of prose that an editor has wrapped and that goes on here.", "Yes."],
        ),
        (
            "This line of prose was wrapped at some width just before\nParis, a name.",
            ["This line of prose was wrapped at some width just before Paris, a name."],
        ),
        ("Title\nThe text begins.", ["Title", "The text begins."]),
        ("Milk\nEggs\nBread", ["Milk", "Eggs", "Bread"]),
        ("Roses, red,\nViolets", ["Roses, red, Violets"]),
        ("Things:\n- one\n- two\n1. three", ["Things:", "- one", "- two", "1. three"]),
        (
            "这是一段很长很长很长很长很长很长很长很长很长很长很长的中文\n没有标点。",
            ["这是一段很长很长很长很长很长很长很长很长很长很长很长的中文没有标点。"],
        ),
        ("标题\n正文。", ["标题", "正文。"]),
        ("x " * 60 + "\nNext", [("x " * 60).strip(), "Next"]),
        ("a\r\nb\rc\u2028d", ["a b c d"]),
        ("A\r\nB", ["A", "B"]),
    ],
)
def test_line_breaks(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_what_comes_after_a_piece() -> None:
    text = "One two three. Four five six.\n\nA new paragraph\n \nLast."
    assert events_of(text, "sentence") == [
        "One two three.", PieceEnd("sentence"), "Four five six.", PieceEnd("paragraph"),
        "A new paragraph", PieceEnd("paragraph"), "Last.", PieceEnd("sentence"),
    ]  # fmt: skip
    assert events_of("word word word word", "auto", 10, 10) == [
        "word word", PieceEnd("none"), "word word", PieceEnd("none"),
    ]  # fmt: skip


def test_auto_begins_with_one_sentence_then_fills_pieces_with_whole_ones() -> None:
    text = "This is the first one. " + "Here is another one. " * 12
    pieces = pieces_of(text, "auto", 60, 120)
    assert pieces[0] == "This is the first one."
    assert pieces[1] == " ".join(["Here is another one."] * 3)  # 62 of 120 columns: half full
    assert all(piece.endswith(".") and len(piece) <= 120 for piece in pieces)


def test_a_sentence_that_does_not_fit_begins_a_piece() -> None:
    long = "it is rather long and has no mark at all before its very end, " + "x" * 20 + "."
    pieces = pieces_of(f"First of them all. Short second one. I say {long}", "auto", 50, 100)
    assert pieces == ["First of them all.", "Short second one.", f"I say {long}"]


def test_very_short_sentences_share_a_piece() -> None:
    assert pieces_of("Yes. I think so. Really?", "auto") == ["Yes. I think so.", "Really?"]
    assert pieces_of("OK! 好。", "auto") == ["OK! 好。"]
    assert pieces_of("Of course! I do.", "auto") == ["Of course!", "I do."]


def test_pieces_never_cross_a_paragraph() -> None:
    assert pieces_of("Yes.\n\nNo. Then so.\n\nWell.", "auto") == ["Yes.", "No. Then so.", "Well."]


def test_lines_without_a_mark_do_not_run_into_each_other() -> None:
    assert pieces_of("Milk\nEggs and bread\nTea.\nJam.", "auto") == [
        "Milk", "Eggs and bread", "Tea. Jam.",
    ]  # fmt: skip


def test_long_sentences_are_cut_at_clauses_then_spaces_then_anywhere() -> None:
    clause = "this is a clause of some length"
    pieces = pieces_of(", ".join([clause] * 5), "auto", 80, 80)
    assert all(piece.endswith(",") for piece in pieces[:-1])
    assert len(pieces) == 3
    assert pieces_of("word " * 30, "auto", 24, 24) == ["word word word word word"] * 6
    assert pieces_of("x" * 100, "auto", 40, 40) == ["x" * 40, "x" * 40, "x" * 20]
    assert pieces_of("好" * 50, "auto", 40, 40) == ["好" * 20, "好" * 20, "好" * 10]
    assert (
        pieces_of("一二三四五六七八，九十一二三四五六七八九。", "auto", 30, 30)[0]
        == "一二三四五六七八，"
    )


def test_a_sentence_that_fits_is_not_cut() -> None:
    text = "This one has, as you see, commas in its later, well, half."
    assert pieces_of(text, "auto", 60, 60) == [text]


def test_cuts_spare_numbers_and_characters_with_their_marks() -> None:
    assert pieces_of("abcdefgh 1234567 x", "auto", 12, 12) == ["abcdefgh", "1234567 x"]
    for text in ("e\u0301" * 40, "👩🏽\u200d💻a" * 20, "x" * 7 + "e\u0301" * 20):
        pieces = pieces_of(text, "auto", 16, 16)
        assert "".join(pieces) == text
        assert not any(piece[0] in "\u0301\u200d🏽" or piece[-1] == "\u200d" for piece in pieces)
    pieces = pieces_of("abcdefghijklmn" + "123456" + "opq", "auto", 40, 40)
    assert pieces == ["abcdefghijklmn123456opq"]


def test_the_first_piece_is_short_but_not_with_none() -> None:
    pieces = pieces_of("word " * 200, "auto", 50, 200)
    assert len(pieces[0]) <= 50
    assert 100 < len(pieces[1]) <= 200
    text = "One. Two.\n\nThree\nfour. " * 40
    assert pieces_of(text, "none", 50, 1 << 40) == [" ".join(text.split())]
    assert max(map(len, pieces_of(text, "none", 20, 100))) > 90


def test_limits_are_checked() -> None:
    for first_limit, limit in ((3, 100), (100, 0)):
        with pytest.raises(ValueError, match="at least 4"):
            Segmenter("auto", first_limit=first_limit, limit=limit)


@pytest.mark.parametrize(
    "text", ["", " \n\n ", "...", "***\n\n---", "🙂", "«»", "—\n—", "?! ?!", "\u200b"]
)
@pytest.mark.parametrize("split", ["auto", "sentence", "none"])
def test_nothing_to_say_makes_no_piece(text: str, split: Split) -> None:
    assert events_of(text, split) == []


def test_marks_before_the_first_word_belong_to_it() -> None:
    assert sentences("Si. – ¿ Qué?") == ["Si.", "– ¿ Qué?"]
    assert sentences("* * * * * * Well.") == ["Well."]


def test_words_leave_at_once() -> None:
    segmenter = Segmenter("auto", first_limit=60, limit=200)
    assert segmenter.feed("Hel") == []
    assert segmenter.feed("lo ") == ["Hello"]
    assert segmenter.feed("dear wor") == [" dear"]
    assert segmenter.feed("ld.") == []
    assert segmenter.feed(" ") == [" world."]
    assert segmenter.feed("N") == [PieceEnd("sentence")]
    assert segmenter.feed("ow then") == ["Now"]
    assert segmenter.feed(".\n") == [" then."]
    assert segmenter.feed("\n") == [PieceEnd("paragraph")]
    assert segmenter.feed("你好") == ["你"]
    assert segmenter.feed("。再") == ["好。"]


def test_flush_speaks_everything_so_far() -> None:
    segmenter = Segmenter("auto", first_limit=60, limit=200)
    assert segmenter.feed("Hello wor") == ["Hello"]
    assert segmenter.flush() == [" wor", PieceEnd("none")]
    assert segmenter.flush() == []
    assert joined(segmenter.feed("This is it. Now") + segmenter.flush()) == [
        "This is it. Now", PieceEnd("none"),
    ]  # fmt: skip
    assert joined(segmenter.feed("Done.") + segmenter.flush()) == ["Done.", PieceEnd("sentence")]
    assert joined(segmenter.feed("...") + segmenter.finish()) == []


NASTY = [
    *"aB1我あカ가é\u0301 \n\r.!?…,:;\"'()「」«»“”„-—#*%。！？，、\u200d👍\u3000\u2028\ud800",
    "\n\n", "...", ". ", "Dr. ", "z. B. ", "3. ",
    "am 3. ", "p.m. ", "и т. д. ", "! »", "。」", "hello ",
    "World ", "longerwordthanthelimit", "12345678", "\r\n", "No. ", "… ", "- ", "1. ", "：\n",
]  # fmt: skip
nasty_text = st.lists(st.sampled_from(NASTY), max_size=60).map("".join)
splits = st.sampled_from(["auto", "sentence", "none"])
limits = st.tuples(st.integers(4, 40), st.integers(4, 80))


@given(nasty_text, splits, limits, st.data())
@settings(max_examples=1500, deadline=None)
def test_cutting_the_text_changes_nothing(
    text: str, split: Split, limit: tuple[int, int], data: st.DataObject
) -> None:
    expected = events_of(text, split, *limit)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for pieces in (parts, list(text)):
        segmenter = Segmenter(split, first_limit=limit[0], limit=limit[1])
        events = [event for piece in pieces for event in segmenter.feed(piece)]
        assert joined(events + segmenter.finish()) == expected


@given(st.one_of(nasty_text, st.text(max_size=200)), splits, limits)
@settings(max_examples=1000, deadline=None)
def test_pieces_are_tidy_and_nothing_is_lost(
    text: str, split: Split, limit: tuple[int, int]
) -> None:
    events = events_of(text, split, *limit)
    bounds = [limit[1] if split == "none" else min(limit), limit[1]]
    for index, (piece, end) in enumerate(zip(events[::2], events[1::2], strict=True)):
        assert isinstance(piece, str)
        assert isinstance(end, PieceEnd)
        assert piece == " ".join(piece.split())
        assert is_speakable(piece)
        assert columns(piece) <= bounds[min(index, 1)]
    spoken = "".join(event for event in events if isinstance(event, str))
    assert [c for c in spoken if is_speakable(c)] == [c for c in text if is_speakable(c)]


@given(nasty_text, st.lists(st.integers(0, 200), max_size=6))
@settings(max_examples=300, deadline=None)
def test_cleaner_and_segmenter_together(text: str, cuts: list[int]) -> None:
    def spoken(parts: list[str]) -> list[Event]:
        cleaner, segmenter = Cleaner(), Segmenter("auto", first_limit=20, limit=60)
        events = [event for part in parts for event in segmenter.feed(cleaner.feed(part))]
        return joined(events + segmenter.feed(cleaner.finish()) + segmenter.finish())

    places = sorted(min(cut, len(text)) for cut in cuts)
    parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert spoken(parts) == spoken([text])


def test_markdown_becomes_sentences() -> None:
    cleaner = Cleaner()
    text = (
        cleaner.feed("# Shopping\nWe need\n- milk\n- fresh eggs\n\n**Note:** soon!")
        + cleaner.finish()
    )
    assert events_of(text, "sentence") == [
        "Shopping.", PieceEnd("paragraph"), "We need.", PieceEnd("sentence"),
        "milk.", PieceEnd("sentence"), "fresh eggs.", PieceEnd("paragraph"),
        "Note: soon!", PieceEnd("sentence"),
    ]  # fmt: skip
    assert pieces_of(text, "auto")[1] == "We need. milk. fresh eggs."


HOSTILE = [
    "a", "1", "a.", ".", "...a", " ", "\n", ". ",
    "a, ", '."', "Dr. ", ".   a", "(", "«", "「", "[", "*", "<",
    '"', "!", "。", "好", "好。", "「好", "\u0301", "a\u0301", "👩‍👩‍👧", "カ",
    "1. ", "a\n", "A\n", "I. ", "z. ", "\r", "— ",
]  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize("split", ["auto", "none"])
def test_work_is_linear(unit: str, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the steps, the units packed (repacked ones again) and the units judged."""
    work = 0
    plain_step, plain_add = Segmenter._step, PiecePacker.add

    def counted_step(self: Segmenter, text: object, position: int) -> int:
        nonlocal work
        work += 1
        return plain_step(self, text, position)  # type: ignore[arg-type]

    def counted_add(self: PiecePacker, unit: Unit) -> None:
        nonlocal work
        work += 1
        plain_add(self, unit)

    monkeypatch.setattr(Segmenter, "_step", counted_step)
    monkeypatch.setattr(PiecePacker, "add", counted_add)
    text = (unit * 100_000)[:100_000]
    spoken = pieces_of(text, split, 60, 240 if split == "auto" else 1 << 40)
    assert work < 5 * len(text)
    assert sum(map(is_speakable, "".join(spoken))) == sum(map(is_speakable, text))


def test_each_step_looks_at_a_bounded_stretch() -> None:
    """Holds also when a word never ends: what is held back stays short."""
    segmenter = Segmenter("auto", first_limit=60, limit=240)
    for unit in HOSTILE:
        for _ in range(300):
            segmenter.feed(unit)
            assert len(segmenter._held) <= 80


def test_a_sentence_end_can_be_denied() -> None:
    """Negative control: the same mark after an ordinary word does end the sentence."""
    assert end_kind("Dr.", " ", previous="", first=True) is None
    assert end_kind("Door.", " ", previous="", first=True) is not None
