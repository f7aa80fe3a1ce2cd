"""Prompts, position by position, against what the official code builds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kazeia_engine import InvalidInput, Tokenizer, UnknownLanguage, UnknownSpeaker
from kazeia_engine.modelfiles import find_pair
from kazeia_engine.prompt import LANGUAGE_CODES, MAX_TEXT_CHARS, Prompt, build_prompt
from kazeia_engine.vocabulary import ModelVocabulary

GOLDEN_RUNS = [
    ("custom-projected", "whole_speaker_french"),
    ("custom-projected", "whole_no_speaker_auto"),
    ("custom-projected", "whole_speaker_auto"),
    ("custom-projected", "stream_text_longer"),
    ("custom-projected", "stream_text_shorter"),
    ("custom-projected", "dialect_auto"),
    ("custom-projected", "dialect_chinese"),
    ("custom-projected", "dialect_english"),
    ("custom-projected", "instruct_speaker"),
    ("custom-projected", "no_penalty"),
    ("custom-equal", "whole_speaker_english"),
    ("custom-equal", "stream_no_speaker_auto"),
    ("custom-equal", "instruct_ignored"),
    ("design", "instruct_eos"),
    ("design", "instruct_max_frames"),
    ("design", "no_instruct_stream"),
    ("base", "stream_no_speaker"),
]


class Opened:
    """The prompt side of one golden model."""

    def __init__(self, folder: Path) -> None:
        talker = find_pair(folder).talker
        self.vocab = ModelVocabulary.load(talker)
        self.tokenizer = Tokenizer(talker)
        tensors = {t.name: t for t in gguf.GGUFReader(talker).tensors}
        table = np.asarray(tensors["token_embd.weight"].data, np.float32)
        self.text_table = table[: self.vocab.text_vocab]
        self.codec_table = table[self.vocab.text_vocab :]

    def prompt(self, text: str, **options: Any) -> Prompt:
        return build_prompt(self.vocab, self.tokenizer, text, **options)

    def embed(self, prompt: Prompt) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The sums the engine makes of a prompt's ids."""
        text = np.where(prompt.text_ids[:, None] < 0, 0, self.text_table[prompt.text_ids])
        codec = np.where(prompt.codec_ids[:, None] < 0, 0, self.codec_table[prompt.codec_ids])
        return np.asarray(text + codec, np.float32)


@pytest.fixture(scope="module")
def opened(golden_models: dict[str, Path]) -> Iterator[dict[str, Opened]]:
    models = {name: Opened(folder) for name, folder in golden_models.items()}
    yield models
    for model in models.values():
        model.tokenizer.close()


@pytest.fixture(scope="module")
def custom(opened: dict[str, Opened]) -> Opened:
    return opened["custom-projected"]


def case_options(manifest: dict[str, Any], model: str, case: str) -> tuple[str, dict[str, Any]]:
    entry = next(c for c in manifest["models"][model]["cases"] if c["name"] == case)
    mode = "whole" if entry["non_streaming_mode"] else "streaming"
    options = {k: entry[k] for k in ("speaker", "language", "instruct")}
    return entry["text"], {**options, "text_mode": mode}


def test_every_golden_run_is_checked(golden_manifest: dict[str, Any]) -> None:
    made = {(m, c["name"]) for m, e in golden_manifest["models"].items() for c in e["cases"]}
    assert made == set(GOLDEN_RUNS)


@pytest.mark.parametrize(("model", "case"), GOLDEN_RUNS)
def test_prompt_embeddings_equal_the_official(
    opened: dict[str, Opened],
    golden_manifest: dict[str, Any],
    golden_case: Any,
    model: str,
    case: str,
) -> None:
    text, options = case_options(golden_manifest, model, case)
    expected = golden_case(model, case)
    prompt = opened[model].prompt(text, **options)
    assert opened[model].tokenizer.wrap(text) == expected["input_ids"].tolist()
    if "instruct_ids" in expected:
        wrapped = opened[model].tokenizer.wrap_instruct(options["instruct"])
        assert wrapped == expected["instruct_ids"].tolist()
    embeds = opened[model].embed(prompt)
    assert embeds.shape == expected["prompt_embeds"].shape
    # Two f32 roundings of the folded text MLP: far below the distance of two tokens' rows.
    np.testing.assert_allclose(embeds, expected["prompt_embeds"], atol=2e-5, rtol=1e-5)


def test_the_comparison_sees_a_wrong_id(custom: Opened, golden_case: Any) -> None:
    prompt = custom.prompt("Bonjour the voix.", speaker="vivian", language="french")
    for i in range(prompt.n_positions):
        text_ids = prompt.text_ids.copy()
        text_ids[i] += 1
        embeds = custom.embed(replace(prompt, text_ids=text_ids))
        expected = golden_case("custom-projected", "whole_speaker_french")["prompt_embeds"]
        assert not np.allclose(embeds, expected, atol=2e-5, rtol=1e-5)


def test_facts_survive_both_converters(opened: dict[str, Opened]) -> None:
    """The pair of llama.cpp's converter has no keys of ours, yet says the same."""
    ours, theirs = opened["base"].vocab, opened["llamacpp-base"].vocab
    assert theirs.codec == ours.codec
    assert theirs.text == ours.text
    assert dict(theirs.languages) == dict(ours.languages)
    assert (theirs.text_vocab, theirs.codec_vocab) == (ours.text_vocab, ours.codec_vocab)
    assert theirs.kind == ours.kind == "base"
    a = opened["base"].prompt("the voix", language="english")
    b = opened["llamacpp-base"].prompt("the voix", language="english")
    np.testing.assert_array_equal(a.text_ids, b.text_ids)
    np.testing.assert_array_equal(a.codec_ids, b.codec_ids)


def test_whole_layout(custom: Opened) -> None:
    vocab = custom.vocab
    c, t = vocab.codec, vocab.text
    ids = custom.tokenizer.wrap("the voix")
    body = ids[3:-5]
    prompt = custom.prompt("the voix", speaker="vivian", language="french")
    tags = [c.think, c.think_bos, vocab.languages["french"], c.think_eos, vocab.speakers["vivian"]]
    assert prompt.text_ids.tolist() == [*ids[:3], *[t.pad] * 5, t.bos, *body, t.eos, t.pad]
    assert prompt.codec_ids.tolist() == [
        *[-1] * 3, *tags, c.pad, *[c.pad] * (len(body) + 1), c.bos
    ]  # fmt: skip
    assert prompt.trailing_ids.tolist() == []
    assert (prompt.layout, prompt.pad_text_id, prompt.n_text_tokens) == ("whole", t.pad, len(body))
    assert prompt.n_positions == 11 + len(body)
    assert prompt.text_ids.dtype == prompt.codec_ids.dtype == prompt.trailing_ids.dtype == np.int32


def test_streaming_layout(custom: Opened) -> None:
    c, t = custom.vocab.codec, custom.vocab.text
    ids = custom.tokenizer.wrap("the voix")
    body = ids[3:-5]
    prompt = custom.prompt("the voix", text_mode="streaming")
    assert prompt.text_ids.tolist() == [*ids[:3], *[t.pad] * 3, t.bos, body[0]]
    assert prompt.codec_ids.tolist() == [
        *[-1] * 3, c.nothink, c.think_bos, c.think_eos, c.pad, c.bos
    ]  # fmt: skip
    assert prompt.trailing_ids.tolist() == [*body[1:], t.eos]


def test_streaming_with_a_single_token(custom: Opened) -> None:
    prompt = custom.prompt("a", speaker="ryan", language="german", text_mode="streaming")
    assert prompt.n_text_tokens == 1
    assert prompt.n_positions == 10
    assert prompt.trailing_ids.tolist() == [custom.vocab.text.eos]


def test_everything_before_the_first_text_token_is_shared(custom: Opened) -> None:
    a = custom.prompt("the voix", speaker="ryan", language="german", text_mode="streaming")
    b = custom.prompt("Bonjour!", speaker="ryan", language="german", text_mode="streaming")
    np.testing.assert_array_equal(a.text_ids[:-1], b.text_ids[:-1])
    np.testing.assert_array_equal(a.codec_ids, b.codec_ids)


@pytest.mark.parametrize("text_mode", ["whole", "streaming"])
def test_instruction_comes_first(custom: Opened, text_mode: Any) -> None:
    plain = custom.prompt("the voix", speaker="ryan", text_mode=text_mode)
    told = custom.prompt("the voix", speaker="ryan", text_mode=text_mode, instruct="Sing.")
    n = len(custom.tokenizer.wrap_instruct("Sing."))
    assert told.text_ids[:n].tolist() == custom.tokenizer.wrap_instruct("Sing.")
    assert told.codec_ids[:n].tolist() == [-1] * n
    np.testing.assert_array_equal(told.text_ids[n:], plain.text_ids)
    np.testing.assert_array_equal(told.codec_ids[n:], plain.codec_ids)
    assert told.warnings == ()


@pytest.mark.parametrize(("model", "what"), [("custom-equal", "custom_voice"), ("base", "base")])
def test_instruction_is_left_out_with_a_warning(
    opened: dict[str, Opened], model: str, what: str
) -> None:
    plain = opened[model].prompt("the voix")
    told = opened[model].prompt("the voix", instruct="Sing.")
    np.testing.assert_array_equal(told.text_ids, plain.text_ids)
    assert len(told.warnings) == 1
    assert what in told.warnings[0]
    assert plain.warnings == ()
    assert not opened[model].vocab.follows_instructions


def language_tag(custom: Opened, **options: Any) -> str | None:
    """The language in a prompt, by name."""
    prompt = custom.prompt("the voix", **options)
    names = {i: n for n, i in custom.vocab.languages.items()}
    found = [names[i] for i in prompt.codec_ids.tolist() if i in names]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize(
    ("speaker", "language", "tag"),
    [
        (None, "auto", None),
        ("vivian", "auto", None),
        ("vivian", "chinese", "chinese"),
        ("dylan", "auto", "beijing_dialect"),
        ("dylan", "chinese", "beijing_dialect"),
        ("dylan", "zh", "beijing_dialect"),
        ("DYLAN", "AUTO", "beijing_dialect"),
        ("dylan", "english", "english"),
        ("vivian", "beijing_dialect", "beijing_dialect"),
        ("vivian", "French", "french"),
        ("vivian", "fr", "french"),
        ("vivian", "fr-CA", "french"),
        ("vivian", "en_US", "english"),
    ],
)
def test_languages(custom: Opened, speaker: str | None, language: str, tag: str | None) -> None:
    assert language_tag(custom, speaker=speaker, language=language) == tag


def test_dialects_are_not_offered(custom: Opened) -> None:
    assert "beijing_dialect" not in custom.vocab.language_names
    assert {"chinese", "english", "french", "german"} == set(custom.vocab.language_names)


def test_codes_name_the_ten_languages() -> None:
    assert len(LANGUAGE_CODES) == len(set(LANGUAGE_CODES.values())) == 10


@pytest.mark.parametrize("language", ["klingon", "", "xx", "french ", "beijing"])
def test_unknown_language_lists_the_known(custom: Opened, language: str) -> None:
    with pytest.raises(UnknownLanguage, match="auto, chinese, english") as caught:
        custom.prompt("the voix", language=language)
    assert caught.value.param == "language"


def test_unknown_speaker_lists_the_known(custom: Opened) -> None:
    with pytest.raises(UnknownSpeaker, match="vivian, ryan, dylan") as caught:
        custom.prompt("the voix", speaker="nobody")
    assert caught.value.param == "speaker"


def test_speaker_of_a_model_without_speakers(opened: dict[str, Opened]) -> None:
    with pytest.raises(UnknownSpeaker, match="voice_design model has no speakers"):
        opened["design"].prompt("the voix", speaker="vivian")


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\u3000\u00a0\u2003"])
def test_nothing_to_say(custom: Opened, text: str) -> None:
    with pytest.raises(InvalidInput, match="empty") as caught:
        custom.prompt(text)
    assert caught.value.param == "text"


def test_too_much_to_say(custom: Opened) -> None:
    with pytest.raises(InvalidInput, match="characters, expected at most"):
        custom.prompt("a" * (MAX_TEXT_CHARS + 1))
    with pytest.raises(InvalidInput, match="tokens, expected 1 to"):
        custom.prompt("é" * 20_000)


@pytest.mark.parametrize("instruct", [" ", "x" * (MAX_TEXT_CHARS + 1), "é" * 20_000])
def test_unusable_instruction(custom: Opened, instruct: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        custom.prompt("the voix", instruct=instruct)
    assert caught.value.param == "instruct"


def test_unknown_text_mode(custom: Opened) -> None:
    with pytest.raises(InvalidInput, match="auto, whole, streaming") as caught:
        custom.prompt("the voix", text_mode="sideways")
    assert caught.value.param == "text_mode"


def test_auto_is_whole_for_a_complete_text(custom: Opened) -> None:
    assert custom.prompt("the voix", text_mode="auto").layout == "whole"


def test_typed_control_text_stays_text(custom: Opened) -> None:
    prompt = custom.prompt("the <|im_end|> voix <tts_pad>")
    body = prompt.text_ids[3 + 4 :].tolist()[:-2]
    assert not any(custom.tokenizer.is_special(i) for i in body)


def test_info(custom: Opened) -> None:
    info = custom.vocab.info(sizes={"talker_hidden": 96}, formats={"talker": "f32"})
    assert (info.kind, info.sample_rate, info.frame_rate) == ("custom_voice", 24000, 12.5)
    assert set(info.speakers) == {"vivian", "ryan", "dylan"}
    assert info.dialects == {"dylan": "beijing_dialect"}
    assert info.languages == custom.vocab.language_names
    assert info.follows_instructions
    assert (info.sizes, info.formats) == ({"talker_hidden": 96}, {"talker": "f32"})
