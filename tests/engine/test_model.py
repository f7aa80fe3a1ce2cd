"""The surface of Model: options, streams, cancelling, closing, bad input."""

from __future__ import annotations

import gc
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kazeia_engine import (
    EngineClosed,
    EngineError,
    InvalidInput,
    Model,
    ModelFormatError,
    ModelNotFound,
    UnknownLanguage,
    UnknownSpeaker,
)
from kazeia_engine.gguf_keys import GgufKeys
from kazeia_engine.tools.convert import convert
from kazeia_engine.tools.synth import synth

TEXT = "Bonjour the voix."


@pytest.fixture(scope="module")
def model(golden_models: dict[str, Path]) -> Iterator[Model]:
    with Model.load(golden_models["custom-projected"]) as loaded:
        yield loaded


def test_info(model: Model) -> None:
    info = model.info
    assert info.kind == "custom_voice"
    assert info.speakers == ("vivian", "ryan", "dylan")
    assert "french" in info.languages
    assert not any("dialect" in language for language in info.languages)
    assert info.sample_rate == 24000
    assert info.frame_rate == 12.5
    assert info.sizes["n_codebooks"] == 16
    assert info.formats["talker"] == "f32"


def test_result_adds_up(model: Model) -> None:
    result = model.synthesize(TEXT, speaker="vivian", max_frames=10, ignore_eos=True, profile=True)
    assert result.codes.shape == (10, 16)
    assert result.pcm.shape == (10 * 1920,)
    assert result.pcm.dtype == np.float32
    assert result.ended == "max_frames"
    assert result.truncated
    assert any("cut at 10 frames" in w for w in result.warnings)
    assert result.ttfb_s > 0
    assert result.rtf > 0
    decoder = ("quant", "preconv", "pretr", "upsample", "bigvgan")
    assert set(result.stages) == {"prefill", "talker", "cp", "sample", "decoder", *decoder}
    assert all(result.stages[s] > 0 for s in ("prefill", "talker", "cp", "decoder", *decoder))
    assert sum(result.stages[s] for s in decoder) <= result.stages["decoder"]
    unmeasured = model.synthesize(TEXT, max_frames=2, ignore_eos=True)
    assert set(unmeasured.stages) == {"prefill", "talker", "cp", "sample", "decoder"}


@pytest.mark.parametrize("chunk", ["auto", 0, 1, 3, 100])
def test_stream_equals_synthesize(model: Model, chunk: Any) -> None:
    whole = model.synthesize(TEXT, seed=5, max_frames=9, ignore_eos=True, chunk=0)
    with model.stream(TEXT, seed=5, max_frames=9, ignore_eos=True, chunk=chunk) as stream:
        chunks = list(stream)
        result = stream.result
    np.testing.assert_array_equal(np.concatenate([c.pcm for c in chunks]), whole.pcm)
    np.testing.assert_array_equal(result.codes, whole.codes)
    assert [c.index for c in chunks] == list(range(len(chunks))) == list(range(result.n_chunks))
    assert sum(c.n_frames for c in chunks) == 9
    assert [c.first_frame for c in chunks] == np.cumsum(
        [0, *[c.n_frames for c in chunks[:-1]]]
    ).tolist()
    assert result.pcm.size == 0  # the caller has the chunks


def test_seeds_threads_and_the_oracle_agree(golden_models: dict[str, Path], model: Model) -> None:
    first = model.synthesize(TEXT, seed=1, max_frames=12, ignore_eos=True)
    again = model.synthesize(TEXT, seed=1, max_frames=12, ignore_eos=True)
    other = model.synthesize(TEXT, seed=2, max_frames=12, ignore_eos=True)
    oracle = model.synthesize(TEXT, seed=1, max_frames=12, ignore_eos=True, cp_cache=False)
    np.testing.assert_array_equal(first.codes, again.codes)
    np.testing.assert_array_equal(first.codes, oracle.codes)
    assert not np.array_equal(first.codes, other.codes)
    for threads in (1, 3):
        with Model.load(golden_models["custom-projected"], threads=threads) as sibling:
            result = sibling.synthesize(TEXT, seed=1, max_frames=12, ignore_eos=True)
        np.testing.assert_array_equal(first.codes, result.codes)


def test_formats_of_the_decoder_stay_close(golden_dir: Path, tmp_path: Path) -> None:
    """Its audio for the same codes stays near that of f32."""
    codes = np.random.default_rng(3).integers(0, 64, (12, 16))
    pcm = {}
    for kind in ("f32", "f16", "bf16", "q8_0"):
        convert(golden_dir / "custom-projected", tmp_path / kind, type="f32", decoder_type=kind)
        with Model.load(tmp_path / kind) as loaded:
            pcm[kind] = loaded.decode(codes)
    for kind, decibels in (("f16", 40), ("bf16", 24), ("q8_0", 20)):
        noise = np.mean((pcm[kind] - pcm["f32"]) ** 2)
        assert noise > 0, kind
        assert 10 * math.log10(np.mean(pcm["f32"] ** 2) / noise) > decibels, kind


@pytest.mark.parametrize(
    ("kind", "relative"),
    [("f16", 0), ("bf16", 0), ("q8_0", 0.001), ("q4_0", 0.001), ("q5_1", 0.05)],
)
def test_quantised_products_follow_their_dequantised_weights(
    tmp_path: Path, kind: str, relative: float
) -> None:
    """Products in the file's types against f32 products over the very same weights.

    Ours round the inputs to 16 bits at most; ggml's (q5_1) to 8.
    """
    synth(tmp_path, size="tiny", type=kind)
    greedy: dict[str, Any] = {"temperature": 0.0, "cp_temperature": 0.0, "frames": 4}
    with Model.load(tmp_path) as auto, Model.load(tmp_path, precision="f32") as exact:
        assert auto.info.formats["talker"] == kind
        codes = exact.trace(TEXT, **greedy)["codes"]
        a = auto.trace(TEXT, force_codes=codes, **greedy)
        b = exact.trace(TEXT, force_codes=codes, **greedy)
        assert np.isfinite(auto.synthesize(TEXT, max_frames=3, ignore_eos=True).pcm).all()
    for stage in ("talker_logits", "cp_logits"):
        difference = np.sqrt(np.mean((a[stage] - b[stage]) ** 2))
        assert difference <= relative * np.sqrt(np.mean(b[stage] ** 2)), stage
        assert (difference > 0) == (relative > 0), stage


def test_f32_precision_dequantises(golden_dir: Path, tmp_path: Path) -> None:
    convert(golden_dir / "custom-equal", tmp_path / "q8", type="q8_0")
    with Model.load(tmp_path / "q8") as auto, Model.load(tmp_path / "q8", precision="f32") as exact:
        assert auto.info.formats["talker"] == "q8_0"
        assert exact.info.formats["talker"] == "f32"
        greedy: dict[str, Any] = {"temperature": 0.0, "cp_temperature": 0.0, "frames": 4}
        codes = exact.trace(TEXT, **greedy)["codes"]
        a = auto.trace(TEXT, force_codes=codes, **greedy)
        b = exact.trace(TEXT, force_codes=codes, **greedy)
    difference = np.abs(a["talker_logits"] - b["talker_logits"]).max()
    assert 0 < difference < 0.1 * np.abs(b["talker_logits"]).max()


def test_close_cancels_from_another_thread(model: Model) -> None:
    stream = model.stream(TEXT, max_frames=20000, ignore_eos=True, chunk=1)
    next(stream)
    threading.Timer(0.05, stream.close).start()
    for _ in stream:
        pass
    assert stream.result.ended == "cancelled"
    assert len(stream.result.codes) < 20000
    with pytest.raises(StopIteration):
        next(stream)
    assert model.synthesize(TEXT, max_frames=3, ignore_eos=True).codes.shape == (3, 16)


def test_leaving_the_block_cancels(model: Model) -> None:
    with model.stream(TEXT, max_frames=20000, ignore_eos=True, chunk=1) as stream:
        next(stream)
    assert list(stream) == []
    assert stream.result.ended == "cancelled"


def test_dropping_a_stream_frees_it(model: Model) -> None:
    stream = model.stream(TEXT, max_frames=20000, ignore_eos=True, chunk=1)
    next(stream)
    del stream
    gc.collect()
    started = time.monotonic()
    model.synthesize(TEXT, max_frames=2, ignore_eos=True)
    assert time.monotonic() - started < 30  # it does not wait for 20,000 frames


def test_a_stream_keeps_its_model(golden_models: dict[str, Path]) -> None:
    stream = Model.load(golden_models["custom-equal"]).stream(TEXT, max_frames=6, ignore_eos=True)
    gc.collect()
    assert sum(chunk.n_frames for chunk in stream) == 6


def test_closing_while_others_call(golden_models: dict[str, Path]) -> None:
    for _ in range(10):
        model = Model.load(golden_models["custom-equal"])
        outcomes: list[str] = []

        def work(model: Model = model, outcomes: list[str] = outcomes) -> None:
            try:
                while True:
                    model.trace(TEXT, frames=2)
                    model.synthesize(TEXT, max_frames=3, ignore_eos=True)
                    model.decode(np.zeros((2, 16), int))
            except EngineClosed:
                outcomes.append("closed")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        model.close()
        for thread in threads:
            thread.join(30)
        assert outcomes == ["closed"] * 4


def test_a_forked_child_is_told(model: Model) -> None:
    model.synthesize(TEXT, max_frames=2, ignore_eos=True)
    child = os.fork()
    if child == 0:
        try:
            model.synthesize(TEXT, max_frames=2)
        except EngineError as error:
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_a_chunk_larger_than_the_queue(model: Model) -> None:
    with model.stream(TEXT, max_frames=150, ignore_eos=True, chunk=100) as stream:
        assert [chunk.n_frames for chunk in stream] == [100, 50]


def test_result_before_the_end_is_an_error(model: Model) -> None:
    with model.stream(TEXT, max_frames=200, ignore_eos=True, chunk=1) as stream:
        next(stream)
        with pytest.raises(EngineError, match="no result"):
            _ = stream.result


def test_several_streams_at_once(model: Model) -> None:
    alone = [
        model.synthesize(TEXT, seed=i, max_frames=8 + i, ignore_eos=True, chunk=i % 3).pcm
        for i in range(6)
    ]
    together: dict[int, Any] = {}

    def speak(i: int) -> None:
        options: dict[str, Any] = {"seed": i, "max_frames": 8 + i, "chunk": i % 3}
        together[i] = model.synthesize(TEXT, ignore_eos=True, **options).pcm

    threads = [threading.Thread(target=speak, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(6):
        np.testing.assert_array_equal(alone[i], together[i])


def test_closing_the_model_ends_streams(golden_models: dict[str, Path]) -> None:
    model = Model.load(golden_models["custom-equal"])
    stream = model.stream(TEXT, max_frames=20000, ignore_eos=True, chunk=1)
    next(stream)
    model.close()
    with pytest.raises(EngineClosed):
        for _ in stream:
            pass
    for call in (lambda: model.synthesize(TEXT), lambda: model.decode(np.zeros((1, 16), int))):
        with pytest.raises(EngineClosed):
            call()
    model.close()


def test_decode_stream_equals_decode(model: Model) -> None:
    codes = np.random.default_rng(1).integers(0, 64, (90, 16))
    whole = model.decode(codes)
    assert whole.shape == (90 * 1920,)
    with model.decode_stream() as decoder:
        parts = [decoder.feed(c) for c in np.split(codes, [1, 4, 40, 73])]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        decoder.reset()
        np.testing.assert_array_equal(decoder.feed(codes[:5]), whole[: 5 * 1920])
        assert decoder.feed(codes[:0]).shape == (0,)
    assert model.decode(np.empty((0, 16), int)).shape == (0,)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.zeros((3, 15), int), r"\(3, 15\), expected \[T, 16\]"),
        (np.zeros(16, int), "expected"),
        (np.zeros((2, 16)), "integers"),
        (np.full((2, 16), 64), "expected 0..63"),
        (np.full((2, 16), -1), "outside"),
        (np.full((2, 16), 2**40), "outside"),
        ([[1, 2], [3]], "no array"),
        (np.zeros((2, 16), "timedelta64[s]"), "integers"),
    ],
)
def test_bad_codes(model: Model, codes: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        model.decode(codes)
    with pytest.raises(InvalidInput):
        model.trace(TEXT, frames=2, force_codes=codes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"cp_temperature": math.nan}, "cp_temperature"),
        ({"cp_top_p": -1}, "cp_top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": True}, "seed"),
        ({"max_frames": 0}, "max_frames"),
        ({"chunk": -2}, "chunk"),
        ({"chunk": "all"}, "chunk"),
        ({"text_mode": "fast"}, "text_mode"),
        ({"voice": "vivian"}, "voice"),
        ({"speaker": 3}, "speaker"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": np.complex64(1)}, "top_p"),
        ({"ignore_eos": None}, "ignore_eos"),
        ({"profile": math.nan}, "profile"),
        ({"chunk": np.array([1, 2])}, "chunk"),
        ({"language": ["fr"]}, "language"),
        ({"instruct": b"slowly"}, "instruct"),
    ],
)
def test_bad_options_name_the_parameter(
    model: Model, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        model.synthesize(TEXT, **{"max_frames": 2, **options})
    assert len(model.synthesize(TEXT, max_frames=2, ignore_eos=True).codes) == 2


@pytest.mark.parametrize("text", ["", " \n\t ", "a" * 100_000, "\ud800", "a\0b"])
def test_bad_text(model: Model, text: str) -> None:
    with pytest.raises(InvalidInput):
        model.stream(text)


def test_unknown_names_list_the_known(model: Model) -> None:
    with pytest.raises(UnknownSpeaker, match=r"nobody.*vivian, ryan, dylan"):
        model.stream(TEXT, speaker="nobody")
    with pytest.raises(UnknownLanguage, match=r"klingon.*auto.*french"):
        model.stream(TEXT, language="klingon")


def test_max_frames_is_held_to_the_context(model: Model) -> None:
    with model.stream(TEXT, max_frames=10**9, ignore_eos=True) as stream:
        next(stream)


def test_bad_model_paths(golden_models: dict[str, Path], tmp_path: Path) -> None:
    good = golden_models["custom-equal"]
    with pytest.raises(ModelNotFound):
        Model.load(tmp_path / "nothing")
    with pytest.raises(ModelNotFound):
        Model.load(tmp_path)
    talker = next(p for p in good.iterdir() if "talker" in p.name)
    codec = next(p for p in good.iterdir() if "mmproj" in p.name)
    half = tmp_path / "half"
    half.mkdir()
    (half / talker.name).write_bytes(talker.read_bytes())
    with pytest.raises(ModelNotFound, match="codec"):
        Model.load(half)
    (half / codec.name).write_bytes(codec.read_bytes()[:-5000])
    with pytest.raises(ModelFormatError, match=r"truncated|ends"):
        Model.load(half)
    (half / codec.name).write_bytes(b"")
    with pytest.raises((ModelNotFound, ModelFormatError)):
        Model.load(half)
    assert Model.load(talker).info.kind == "custom_voice"  # the talker file alone finds its pair


@pytest.mark.parametrize(
    "arguments", [{"threads": 0}, {"threads": 10**6}, {"threads": "4"}, {"precision": "f8"}]
)
def test_bad_load_arguments(golden_models: dict[str, Path], arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Model.load(golden_models["custom-equal"], **arguments)


def test_loading_leaves_the_reasons_of_ggml_readable(
    golden_models: dict[str, Path], tmp_path: Path
) -> None:
    Model.load(golden_models["custom-equal"]).close()
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + b"\xff" * 64)
    with pytest.raises(ModelFormatError, match="version"):
        GgufKeys(damaged)


@pytest.mark.parametrize("threads", [0, -1, 1025, "2", True, 1.5])
def test_bare_passes_on_impossible_threads(model: Model, threads: Any) -> None:
    with pytest.raises(InvalidInput, match=r"threads is .*expected"):
        model.measure_passes(threads)


@pytest.mark.parametrize("value", ["gpu", [], None, 1])
@pytest.mark.parametrize("name", ["backend", "precision"])
def test_a_choice_that_is_none(golden_models: dict[str, Path], name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{name} is .*, expected 'auto' or"):
        Model.load(golden_models["base"], **{name: value})
