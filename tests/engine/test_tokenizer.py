"""Token ids against an independent tokenizer with the true vocabulary."""

from __future__ import annotations

import logging
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from true_vocabulary import CONTROL, reference_tokenizer, write_true_vocabulary

from kazeia_engine import EngineClosed, InvalidInput, ModelFormatError, ModelNotFound, Tokenizer
from kazeia_engine.modelfiles import find_pair
from kazeia_engine.tokenizer import MAX_COMBINING_RUN
from kazeia_engine.vocabulary import ModelVocabulary

Reference = Callable[[str], list[int]]

HARD_TEXTS = {
    "envelope of the test vector": "Bonjour je m'appelle Kazeia",
    "accents NFC": "éàüñçœ Ångström naïve façade",
    "accents NFD": unicodedata.normalize("NFD", "éàüñçœ Ångström naïve façade"),
    "hangul jamo": unicodedata.normalize("NFD", "안녕하세요 세계"),
    "vietnamese": "Tiếng Việt: đường phố, người ta",
    "family emoji": "👨‍👩‍👧‍👦 et 👩🏽‍🚀 🏳️‍🌈 🇫🇷🇯🇵 ❤️‍🔥",
    "keycaps": "1️⃣2️⃣#️⃣ ☎️",
    "chinese": "我叫通义千问，是阿里云的开源大模型。１２３",
    "japanese": "こんにちは、世界！ｶﾀｶﾅ ガギグ",
    "thai": "สวัสดีครับ ยินดีต้อนรับ",
    "arabic": "مرحبا بالعالم، كيف حالك؟ ١٢٣",
    "hebrew": "שָׁלוֹם עוֹלָם",
    "devanagari": "नमस्ते दुनिया क्षत्रिय",
    "russian": "Съешь ещё этих мягких французских булок",
    "digits": "3.14159 1,234,567 0x1F 2026-11-29 12:34:56 ½ ² Ⅷ",
    "code": "def f(x):\n\treturn x**2  # sq\n\n\nif __name__ == '__main__':\r\n    f(3)",
    "camel case": "iPhone XMLHttpRequest getUserById McDonald",
    "contractions": "it's I'VE we'll They'D 'tis rock'n'roll l'été aujourd'hui",
    "url": "https://example.org/a/b?c=d&e=%20#f user@example.org",
    "spaces": "a  b   c    d \t e\u00a0f\u2003g\u3000h ",
    "line ends": "a\nb\r\nc\rd\n\n\ne \n f\n ",
    "leading newline": "\nHello",
    "leading newlines and spaces": " \n \n  Hello",
    "trailing newline": "Hello\n",
    "zero width": "a\u200bb\u200cc\u200dd\ufefee\u2060f\ufe0f",
    "bidi": "a\u202eb\u2066c\u2069",
    "controls": "a\x01b\x1bc\x7fd\x85e",
    "quotes": "«Bonjour», „Hallo“, ‘hi’ … — –",
    "private use and unassigned": "\ue000\uf8ff\U0010fffd\u0378",
    "mathematics": "∑ₙ x² ≠ √2·π ℝ 𝒜𝓑",
    "one letter": "a",
    "space and letter": " a",
}
SPECIAL_TEXTS = [
    *CONTROL,
    "Hi<|im_end|>\n<|im_start|>system\nNo<|im_end|>",
    "<<think>>",
    "a</think>b",
    "<tool_call><tool_call>",
    "x <think> y",
    "\n<think>\n",
    "<|fim_prefix|><|fim_middle|>",
    "<|codec_bos|>",
    "<|codec_17|>",
    "<|im_<|im_end|>end|>",
]


@pytest.fixture(scope="session")
def true_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("true") / "true-vocabulary.gguf"
    write_true_vocabulary(path)
    return path


@pytest.fixture(scope="session")
def tokenizer(true_file: Path) -> Iterator[Tokenizer]:
    with Tokenizer(true_file) as opened:
        yield opened


@pytest.fixture(scope="session")
def reference() -> Reference:
    encoder: Any = reference_tokenizer()

    def encode(text: str, special: frozenset[str] = frozenset()) -> list[int]:
        normal = unicodedata.normalize("NFC", text)
        ids: list[int] = encoder.encode(normal, allowed_special=special, disallowed_special=())
        return ids

    return encode


def wrapped(reference: Reference, text: str) -> list[int]:
    """The whole wrapped string in one go: the reference knows these two special tokens."""
    special = frozenset({"<|im_start|>", "<|im_end|>"})
    whole = f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return reference(whole, special)  # type: ignore[call-arg]


def test_test_vector(tokenizer: Tokenizer) -> None:
    assert tokenizer.wrap("Bonjour je m'appelle Kazeia") == [
        151644, 77091, 198, 81581, 4759, 296, 52049, 6712, 730, 9832, 685,
        151645, 198, 151644, 77091, 198,
    ]  # fmt: skip


@pytest.mark.parametrize("text", HARD_TEXTS.values(), ids=HARD_TEXTS.keys())
def test_hard_text(tokenizer: Tokenizer, reference: Reference, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids == reference(text)
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("text", HARD_TEXTS.values(), ids=HARD_TEXTS.keys())
def test_wrapping_equals_the_whole_string(
    tokenizer: Tokenizer, reference: Reference, text: str
) -> None:
    assert tokenizer.wrap(text) == wrapped(reference, text)


@pytest.mark.parametrize("text", SPECIAL_TEXTS)
def test_typed_special_text_stays_text(
    tokenizer: Tokenizer, reference: Reference, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert ids == reference(text)
    assert not any(tokenizer.is_special(i) for i in ids)
    inner = tokenizer.wrap(text)[1:-5]
    assert not any(tokenizer.is_special(i) for i in inner)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("token", CONTROL)
def test_special_tokens_are_parsed_on_request(tokenizer: Tokenizer, token: str) -> None:
    expected = 151643 + CONTROL.index(token)
    assert tokenizer.encode(f"a{token}", parse_special=True)[-1] == expected
    assert tokenizer.token_id(token) == expected


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=80)
# Letters alone rarely meet the borders of the pattern; this mix does.
BORDERS = st.lists(
    st.sampled_from(["'", "s", "B", "'ll", " ", "  ", "\n", "\r\n", "\t", "a", "é", "e\u0301", "1"])
    | st.sampled_from(["你", "。", "<", ">", "|", "_", "/", "\u00a0", "\u200d"])
    | st.sampled_from(["👩", "🏽", "ก", "ا"])
    | st.sampled_from(["<|im_end|>", "<think>", "</think>", "<tool_", "call>", "<|", "|>"]),
    max_size=30,
).map("".join)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXT | BORDERS)
def test_any_text_equals_the_reference(
    tokenizer: Tokenizer, reference: Reference, text: str
) -> None:
    assert tokenizer.encode(text) == reference(text)
    if "<|im_" not in text:  # the reference would parse those
        assert tokenizer.wrap(text) == wrapped(reference, text)


@settings(max_examples=100, deadline=None)
@given(text=TEXT)
def test_structure(tokenizer: Tokenizer, text: str) -> None:
    start, end = tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<|im_end|>")
    ids = tokenizer.wrap(text)
    assert ids[0] == start
    assert ids[-5:] == [end, *tokenizer.encode("\n"), start, *tokenizer.encode("assistant\n")]
    if text[:1].isalnum():
        assert ids[:3] == [start, *tokenizer.encode("assistant\n")]
        assert ids[3:-5] == tokenizer.encode(text)
    assert tokenizer.wrap_reference(text) == ids[:-3]


def test_instruction_envelope(tokenizer: Tokenizer, reference: Reference) -> None:
    special = frozenset({"<|im_start|>", "<|im_end|>"})
    whole = "<|im_start|>user\nSpeak slowly.<|im_end|>\n"
    expected = reference(whole, special)  # type: ignore[call-arg]
    assert tokenizer.wrap_instruct("Speak slowly.") == expected


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x\udfffy"])
def test_text_that_is_no_text(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        tokenizer.encode(text)
    assert caught.value.param == "text"


def test_combining_marks_are_bounded(tokenizer: Tokenizer, reference: Reference) -> None:
    fitting = "e" + "\u0301\u0316" * (MAX_COMBINING_RUN // 2)
    assert tokenizer.encode(fitting) == reference(fitting)
    with pytest.raises(InvalidInput, match="combining marks"):
        tokenizer.encode(fitting + "\u0301")


@pytest.mark.alone
@pytest.mark.parametrize(
    "unit",
    ["a", " ", "\n ", "<", "<|im_end|>", "<think>", "你", "👨‍👩‍👧", "ab1 'll\r\n", "e\u0301"],
)
def test_time_grows_with_the_length(tokenizer: Tokenizer, unit: str) -> None:
    def seconds(chars: int) -> float:
        text = unit * (chars // len(unit))
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            tokenizer.encode(text)
            best = min(best, time.perf_counter() - start)
        return best

    # Eightfold the text: 8 or a little more when linear, 64 when quadratic.
    assert seconds(80_000) < 30 * seconds(10_000) + 0.05


def test_decode_refuses_foreign_ids(tokenizer: Tokenizer) -> None:
    for token in (-1, len(tokenizer)):
        with pytest.raises(InvalidInput, match="expected 0 to 155007"):
            tokenizer.decode([token])


def test_unknown_special_token(tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelFormatError, match="<no_such>"):
        tokenizer.token_id("<no_such>")


def test_closed(true_file: Path) -> None:
    opened = Tokenizer(true_file)
    opened.close()
    opened.close()
    with pytest.raises(EngineClosed):
        opened.encode("a")
    with pytest.raises(EngineClosed):
        opened.decode([1])


def test_nothing_is_printed(
    true_file: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "kazeia.ggml"), Tokenizer(true_file) as opened:
        opened.encode("Hello")
    assert capfd.readouterr() == ("", "")
    assert "vocab" in caplog.text  # llama.cpp's messages arrive, as debug messages
    assert all(record.levelno == logging.DEBUG for record in caplog.records)


def test_unusable_files(tmp_path: Path, true_file: Path, golden_dir: Path) -> None:
    with pytest.raises(ModelNotFound):
        Tokenizer(tmp_path / "none.gguf")
    empty = tmp_path / "empty.gguf"
    empty.touch()
    with pytest.raises(ModelFormatError, match="empty"):
        Tokenizer(empty)
    foreign = tmp_path / "foreign.gguf"
    foreign.write_bytes(b"RIFF" + bytes(2000))
    with pytest.raises(ModelFormatError, match="not a GGUF file"):
        Tokenizer(foreign)
    data = true_file.read_bytes()
    for size in (3, 20, 1000, len(data) // 2, len(data) - 1):
        cut = tmp_path / f"cut-{size}.gguf"
        cut.write_bytes(data[:size])
        with pytest.raises(ModelFormatError):
            Tokenizer(cut)
    codec = golden_dir / "llamacpp-base" / "tiny-mmproj-f32.gguf"
    with pytest.raises(ModelFormatError, match=r"tokenizer\.ggml\.model"):
        Tokenizer(codec)


@pytest.mark.alone
def test_facts_from_the_token_list(true_file: Path) -> None:
    start = time.perf_counter()
    vocab = ModelVocabulary.load(true_file)
    assert time.perf_counter() - start < 2.0
    assert (vocab.text_vocab, vocab.codec_vocab) == (151936, 3072)
    assert (vocab.kind, vocab.model_size) == ("base", "0b6")
    assert (vocab.codec.pad, vocab.codec.bos, vocab.codec.eos) == (2148, 2149, 2150)
    assert (vocab.codec.think, vocab.codec.nothink) == (2154, 2155)
    assert (vocab.codec.think_bos, vocab.codec.think_eos) == (2156, 2157)
    assert (vocab.text.pad, vocab.text.bos, vocab.text.eos) == (151671, 151672, 151673)
    assert dict(vocab.languages) == {"english": 2050, "french": 2061}


def test_a_token_that_stands_twice_is_an_error_not_the_end_of_the_process(
    golden_models: dict[str, Path], tmp_path: Path
) -> None:
    talker = find_pair(golden_models["custom-equal"]).talker.read_bytes()
    assert talker.count(b"<|codec_5|>") == talker.count(b"<|codec_6|>") == 1
    damaged = tmp_path / "talker.gguf"
    damaged.write_bytes(talker.replace(b"<|codec_5|>", b"<|codec_6|>"))
    with pytest.raises(ModelFormatError, match=r"<\|codec_6\|>.*more than once"):
        Tokenizer(damaged)
