"""Text that arrives while it is spoken: the same tokens, codes and audio as the whole text."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_tokenizer import HARD_TEXTS
from true_vocabulary import write_true_vocabulary

from kazeia_engine import EngineClosed, EngineError, InvalidInput, Model, Tokenizer, UnknownSpeaker
from kazeia_engine.live import LiveStream, StableText
from kazeia_engine.prompt import text_ids

TEXT = "Bonjour the voix, and then some more of it."
OPTIONS = {"speaker": "vivian", "language": "french", "seed": 5, "max_frames": 30}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    path = tmp_path_factory.mktemp("vocab") / "true.gguf"
    write_true_vocabulary(path)
    with Tokenizer(path) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def model(golden_models: dict[str, Path]) -> Iterator[Model]:
    with Model.load(golden_models["custom-projected"]) as loaded:
        yield loaded


def released(tokenizer: Tokenizer, pieces: list[str]) -> tuple[list[int], int]:
    """All ids, and how many of them came before the end of the text."""
    text = StableText(tokenizer)
    ids = [i for piece in pieces for i in text.feed(piece)]
    return ids + text.finish(), len(ids)


@pytest.mark.parametrize("text", HARD_TEXTS.values(), ids=HARD_TEXTS.keys())
def test_single_characters_give_the_ids_of_the_whole(tokenizer: Tokenizer, text: str) -> None:
    ids, _ = released(tokenizer, list(text))
    assert ids == text_ids(tokenizer, text)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                ["a", "don", "'t", "'S", " ", "  ", "\n", "1", "2.", "é", "e", "\u0301"]
            ),
            st.sampled_from(
                ["。", "，", "中", "文", "👩", "\u200d", "🚀", "ㅎ", "\u1112", "\u1161"]
            ),
            st.sampled_from(["<", "think", ">", "<|im_", "end|>", "_", "=", "\u0338", "\u00a0"]),
            st.text(max_size=3),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_any_pieces_give_the_ids_of_the_whole(tokenizer: Tokenizer, pieces: list[str]) -> None:
    try:
        whole = text_ids(tokenizer, "".join(pieces))
    except InvalidInput:
        return
    assert released(tokenizer, pieces)[0] == whole


def test_words_are_let_go_at_the_next_space(tokenizer: Tokenizer) -> None:
    text = StableText(tokenizer)
    assert text.feed("Hel") == []
    assert tokenizer.decode(text.feed("lo ")) == "Hello"
    assert tokenizer.decode(text.feed("world, ")) == " world"
    assert text.feed("a") == []  # what follows a comma may still be more punctuation
    assert tokenizer.decode(text.finish()) == ", a"


def test_a_settled_word_does_not_wait_for_what_follows(tokenizer: Tokenizer) -> None:
    text = StableText(tokenizer)
    assert text.feed("Hello") == []
    assert tokenizer.decode(text.settle()) == "Hello"
    assert text.settle() == []
    assert text.feed(" there,") != []
    assert text.settle() == []  # punctuation may go on
    assert tokenizer.decode(text.feed(" you") + text.finish()) == ", you"


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.text("aé1中,.'\u0301👩", min_size=1, max_size=5), min_size=1, max_size=8))
def test_settled_words_give_the_ids_of_the_whole(tokenizer: Tokenizer, words: list[str]) -> None:
    text, ids = StableText(tokenizer), []
    for i, word in enumerate(words):
        ids += text.feed(f" {word}" if i else word) + text.settle()
    assert ids + text.finish() == text_ids(tokenizer, " ".join(words))


def test_a_cut_within_a_word_would_change_the_ids(tokenizer: Tokenizer) -> None:
    """The control: without holding text back, pieces do give other ids."""
    naive = [*text_ids(tokenizer, "Stream"), *tokenizer.encode("ing")]
    assert naive != text_ids(tokenizer, "Streaming")


def test_a_long_text_without_a_cut_takes_linear_time(tokenizer: Tokenizer) -> None:
    text = StableText(tokenizer)
    for _ in range(100_000):
        assert text.feed("x") == []
    assert len(text.finish()) > 1000


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_live_text_gives_the_codes_of_the_whole(model: Model, size: int) -> None:
    whole = model.synthesize(TEXT, text_mode="streaming", **OPTIONS)
    with model.stream_live(**OPTIONS) as live:
        for i in range(0, len(TEXT), size):
            live.push_text(TEXT[i : i + size])
        live.finish_text()
        pcm = np.concatenate([chunk.pcm for chunk in live])
    assert np.array_equal(live.result.codes, whole.codes)
    assert np.array_equal(pcm, whole.pcm)
    assert live.result.ended == whole.ended


def test_speech_starts_before_the_text_ends_and_then_waits(model: Model) -> None:
    whole = model.synthesize(TEXT, text_mode="streaming", **OPTIONS)
    first, rest = TEXT[:20], TEXT[20:]
    with model.stream_live(**OPTIONS, chunk=1) as live:
        chunks = []
        arrived = threading.Event()

        def read() -> None:
            for chunk in live:
                chunks.append(chunk)
                arrived.set()

        reader = threading.Thread(target=read)
        reader.start()
        live.push_text(first)
        assert arrived.wait(20)
        time.sleep(0.5)
        known = len(released(model._tokenizer, [first])[0])
        n = len(chunks)
        assert 1 <= n <= known  # a frame a token, then it waits: nothing is padded
        live.push_text(rest)
        live.finish_text()
        reader.join(20)
    assert len(chunks) > n
    assert np.array_equal(live.result.codes, whole.codes)


def test_faults_are_told(model: Model) -> None:
    with pytest.raises(UnknownSpeaker):
        model.stream_live(speaker="nobody")
    with pytest.raises(InvalidInput, match="unknown option"):
        model.stream_live(text_mode="whole")
    with pytest.raises(InvalidInput, match="temperature"):
        model.stream_live(temperature=-1)
    live = model.stream_live(**OPTIONS)
    with pytest.raises(EngineError, match="has not begun"):
        _ = live.result
    with pytest.raises(InvalidInput, match="empty"):
        live.finish_text()
    with pytest.raises(InvalidInput, match="empty"):
        next(live)
    with pytest.raises(InvalidInput, match="empty"):
        live.push_text("more")
    live = model.stream_live(**OPTIONS)
    live.push_text("Bonjour")
    live.finish_text()
    with pytest.raises(InvalidInput, match="complete"):
        live.push_text("more")
    live = model.stream_live(**OPTIONS)
    live.push_text("Bonjour ")
    live.push_text("\ud800 ")  # nothing is certain of it yet
    with pytest.raises(InvalidInput, match="surrogate"):
        live.push_text("word ")


def test_a_refused_piece_is_told_to_the_reader(model: Model) -> None:
    live = model.stream_live(**OPTIONS)
    live.push_text("Bonjour the voix, and ")
    assert next(live) is not None
    with pytest.raises(InvalidInput, match="combining"):
        live.push_text("a" + "\u0301" * 400 + " more ")
    with pytest.raises(InvalidInput, match="combining"):
        list(live)
    with pytest.raises(InvalidInput, match="combining"):
        live.finish_text()


def test_close_ends_a_reader_that_waits_for_text(model: Model) -> None:
    for text in ("", "Bonjour the "):
        live = model.stream_live(**OPTIONS)
        live.push_text(text)
        reader = threading.Thread(target=lambda stream: list(stream), args=(live,))
        reader.start()
        time.sleep(0.1)
        live.close()
        reader.join(10)
        assert not reader.is_alive()
        live.push_text("too late ")  # nobody listens, nothing breaks
        live.finish_text()


def test_close_does_not_wait_for_a_text_that_is_being_read(model: Model) -> None:
    """Whoever cancels may be an event loop."""
    with model.stream_live(**OPTIONS) as stream:
        inside, go_on = threading.Event(), threading.Event()
        feed = stream._text.feed

        def slow_feed(text: str) -> list[int]:
            inside.set()
            assert go_on.wait(20)
            return feed(text)

        stream._text.feed = slow_feed  # type: ignore[method-assign]
        writing = threading.Thread(target=stream.push_text, args=(TEXT,))
        closing = threading.Thread(target=stream.close)
        writing.start()
        assert inside.wait(10)
        closing.start()
        closing.join(10)
        waited = closing.is_alive()
        go_on.set()
        writing.join(10)
        assert not waited
        assert next(stream, None) is None


def test_close_of_the_model_ends_it(golden_models: dict[str, Path]) -> None:
    model = Model.load(golden_models["custom-projected"])
    live = model.stream_live(**OPTIONS)
    live.push_text("Bonjour the voix ")
    model.close()
    with pytest.raises(EngineClosed):
        list(live)
    late: LiveStream = model.stream_live(**OPTIONS)
    with pytest.raises(EngineClosed):
        late.push_text("Bonjour the voix ")


def test_pieces_really_differ() -> None:
    """The sizes of the parametrised test cut the text in different places."""
    cuts = [set(range(0, len(TEXT), size)) for size in (1, 2, 5, 100)]
    assert all(a != b for a, b in pairwise(cuts))
