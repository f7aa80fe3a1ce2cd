from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kazeia_server.text import has_content, split_pieces, split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Hello there. How are you?", ["Hello there.", "How are you?"]),
        ("Dr. Smith met J. Doe. They talked.", ["Dr. Smith met J. Doe.", "They talked."]),
        ('He said "Go!" Then he left.', ['He said "Go!"', "Then he left."]),
        ("Pi is 3.14. Really...", ["Pi is 3.14.", "Really..."]),
        ("approx. five", ["approx. five"]),
        ("one\ntwo\r\n\n three ", ["one", "two", "three"]),
        ("你好。再见！好", ["你好。", "再见！", "好"]),
        ("Wait... what?! Yes", ["Wait...", "what?!", "Yes"]),
        ("So did I. Then came Bob.", ["So did I.", "Then came Bob."]),
        ("see example.com/a.b now", ["see example.com/a.b now"]),
        ("", []),
        ("  \n ", []),
        ("...", ["..."]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert list(split_sentences(text)) == sentences


def test_long_sentences_are_cut_at_clauses_then_spaces_then_anywhere() -> None:
    clause = "this is a clause of some length"
    pieces = list(split_pieces(", ".join([clause] * 5), limit=80))
    assert all(piece.endswith(",") for piece in pieces[:-1])
    assert list(split_pieces("word " * 30, limit=24)) == ["word word word word word"] * 6
    assert list(split_pieces("x" * 100, limit=40)) == ["x" * 40, "x" * 40, "x" * 20]


def test_the_first_piece_is_short() -> None:
    pieces = list(split_pieces("word " * 200, limit=200, first_limit=50))
    assert len(pieces[0]) <= 50
    assert 100 < len(pieces[1]) <= 200


@given(st.text(alphabet=st.sampled_from('aB1 .!?,"\n。\u200b')), st.integers(4, 30))
def test_nothing_is_lost_and_no_piece_is_too_long(text: str, limit: int) -> None:
    pieces = list(split_pieces(text, limit=limit))
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(0 < len(piece) <= limit for piece in pieces)


@pytest.mark.parametrize(
    "unit", ["a", "a.", ".", "1", " ", "\n", ". ", "a, ", '."', "Dr. ", "。", "...a", ".   a"]
)
def test_time_is_linear_on_hostile_text(unit: str) -> None:
    def seconds(n_chars: int) -> float:
        text = unit * (n_chars // len(unit))
        begun = time.process_time()
        for _ in split_pieces(text, limit=200, first_limit=50):
            pass
        return time.process_time() - begun

    assert seconds(200_000) < max(20 * seconds(20_000), 0.5)


@pytest.mark.parametrize("text", ["", " \t\n", "\u200b\u200d", "\u202e", "\0", "\ufeff", "\u3000"])
def test_invisible_text_has_no_content(text: str) -> None:
    assert not has_content(text)


@pytest.mark.parametrize("text", ["a", ".", " é ", "你", "🙂"])
def test_visible_text_has_content(text: str) -> None:
    assert has_content(text)
