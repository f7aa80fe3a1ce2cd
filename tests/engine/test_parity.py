"""The engine against the official package: tiny seeded models, every stage, in f32."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kazeia_engine import Model, binding

Array = npt.NDArray[Any]
GoldenCase = Callable[[str, str], dict[str, Array]]

MODELS = ("custom-projected", "custom-equal", "design", "base")


@pytest.fixture(scope="module")
def models(golden_models: dict[str, Path]) -> Iterator[dict[str, Model]]:
    loaded = {name: Model.load(path, precision="f32") for name, path in golden_models.items()}
    yield loaded
    for model in loaded.values():
        model.close()


def runs(manifest: dict[str, Any], model: str) -> list[dict[str, Any]]:
    """The cases of a model that speak a text."""
    return [case for case in manifest["models"][model]["cases"] if "text" in case]


def options(case: dict[str, Any]) -> dict[str, Any]:
    return {
        "speaker": case["speaker"],
        "language": case["language"] or "auto",
        "instruct": case["instruct"],
        "repetition_penalty": case["repetition_penalty"],
        "text_mode": "whole" if case["non_streaming_mode"] else "streaming",
        "temperature": 0.0,
        "cp_temperature": 0.0,
    }


def assert_close(got: Array, expected: Array, *, tolerance: float, what: str) -> None:
    """|got - expected| within tolerance times the largest expected value."""
    assert got.shape == expected.shape, what
    assert np.isfinite(got).all(), what
    error = np.abs(got - expected)
    limit = tolerance * max(1.0, float(np.abs(expected).max()))
    at = np.unravel_index(int(error.argmax()), error.shape)
    assert error.max() <= limit, (
        f"{what}{list(map(int, at))}: got {got[at]}, expected {expected[at]}, limit {limit:.1e}"
    )


@pytest.mark.parametrize("name", MODELS)
def test_greedy_runs_give_the_official_codes(
    name: str,
    models: dict[str, Model],
    golden_manifest: dict[str, Any],
    golden_case: GoldenCase,
) -> None:
    cases = runs(golden_manifest, name)
    assert cases
    for case in cases:
        expected = golden_case(name, case["name"])
        result = models[name].synthesize(
            case["text"], max_frames=case["max_frames"], **options(case)
        )
        np.testing.assert_array_equal(result.codes, expected["codes"], err_msg=case["name"])
        assert result.ended == case["ended"], case["name"]
        if "pcm" in expected:
            assert_close(result.pcm, expected["pcm"], tolerance=1e-4, what=f"{case['name']} pcm")


@pytest.mark.parametrize("name", MODELS)
def test_teacher_forced_stages(
    name: str,
    models: dict[str, Model],
    golden_manifest: dict[str, Any],
    golden_case: GoldenCase,
) -> None:
    for case in runs(golden_manifest, name):
        expected = golden_case(name, case["name"])
        assert models[name].tokenize(case["text"]) == expected["input_ids"].ravel().tolist()
        frames = len(expected["codes"])
        got = models[name].trace(
            case["text"], frames=frames, force_codes=expected["codes"], **options(case)
        )
        # f32 sums of a few hundred products in another order than torch's.
        for stage in ("prompt_embeds", "talker_hidden", "talker_logits", "cp_logits"):
            rows = min(len(got[stage]), len(expected[stage]))
            assert rows >= frames or stage == "prompt_embeds"
            assert_close(
                got[stage][:rows],
                expected[stage][:rows],
                tolerance=1e-5,
                what=f"{case['name']} {stage}",
            )


def test_forcing_other_codes_changes_the_logits(
    models: dict[str, Model], golden_manifest: dict[str, Any], golden_case: GoldenCase
) -> None:
    """The negative control of the stage comparison."""
    case = runs(golden_manifest, "custom-equal")[0]
    expected = golden_case("custom-equal", case["name"])
    codes = expected["codes"].copy()
    codes[0, 15] = (codes[0, 15] + 1) % 64  # the last code of a frame is fed back too
    got = models["custom-equal"].trace(
        case["text"], frames=len(codes), force_codes=codes, **options(case)
    )
    with pytest.raises(AssertionError, match="logits"):
        assert_close(got["talker_logits"], expected["talker_logits"], tolerance=1e-5, what="logits")


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("custom-projected", "decoder_stages"),
        ("custom-equal", "decoder_stages"),
        ("custom-projected", "decoder_window"),  # more frames than the attention window
    ],
)
def test_decoder_stages(
    name: str, case: str, models: dict[str, Model], golden_case: GoldenCase
) -> None:
    expected = golden_case(name, case)
    codes = expected.pop("codes")
    got = models[name].trace_decoder(codes)
    assert expected.keys() <= got.keys()
    assert "pcm" in expected
    for stage, values in expected.items():
        assert_close(
            got[stage], values.reshape(got[stage].shape), tolerance=1e-4, what=f"{case} {stage}"
        )
    for chunk in (0, 1, 3, 7, 64):
        pcm = models[name].decode(codes, chunk=chunk)
        assert_close(pcm, expected["pcm"].ravel(), tolerance=1e-4, what=f"chunk {chunk}")


@pytest.mark.parametrize("case", ["decoder_stages", "decoder_window"])
def test_decoder_with_minimal_filters(
    case: str, models: dict[str, Model], golden_models: dict[str, Path], golden_case: GoldenCase
) -> None:
    """The decoder as it runs by default, in the model wide enough that some layers use filters."""
    expected = golden_case("custom-projected", case)
    with Model.load(golden_models["custom-projected"]) as model:
        pcm = model.decode(expected["codes"])
    assert_close(pcm, expected["pcm"].ravel(), tolerance=1e-4, what=case)
    direct = models["custom-projected"].decode(expected["codes"])
    assert (pcm != direct).any(), "no layer used a filter"


def test_a_pair_of_llama_cpps_converter(
    models: dict[str, Model], golden_manifest: dict[str, Any], golden_case: GoldenCase
) -> None:
    """Same weights through the other converter: same codes; its conv kernels are f16."""
    model = models["llamacpp-base"]
    case = runs(golden_manifest, "base")[0]
    expected = golden_case("base", case["name"])
    result = model.synthesize(case["text"], max_frames=case["max_frames"], **options(case))
    np.testing.assert_array_equal(result.codes, expected["codes"])
    noise = float(np.mean((result.pcm - expected["pcm"]) ** 2))
    assert 10 * math.log10(float(np.mean(expected["pcm"] ** 2)) / noise) > 35


def test_sampler_keeps_the_official_candidates(golden_dir: Path) -> None:
    library = binding.library()
    with np.load(golden_dir / "sampler.npz") as arrays:
        rows = dict(arrays)
    assert len(rows["logits"]) >= 30
    ties = 0
    for i, logits in enumerate(rows["logits"]):
        settings = binding.SamplingStruct(
            float(rows["temperature"][i]),
            int(rows["top_k"][i]),
            float(rows["top_p"][i]),
            float(rows["repetition_penalty"][i]),
            0,
        )
        logits = np.ascontiguousarray(logits, np.float32)
        suppressed = np.ascontiguousarray(rows["suppressed"][i], np.uint8)
        history = rows["history"][i]
        history = np.ascontiguousarray(history[history >= 0], np.int32)
        probs = np.empty(len(logits), np.float32)
        binding.check(
            library.kz_sampler_probs(
                ctypes.byref(settings),
                binding.floats(logits),
                len(logits),
                suppressed.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)),
                binding.ints(history),
                len(history),
                binding.floats(probs),
            )
        )
        expected = rows["probs"][i]
        np.testing.assert_allclose(np.sort(probs), np.sort(expected), atol=1e-6, err_msg=f"row {i}")
        # Which of several equal logits falls to top-p is up to the reference's unstable sort.
        differ = np.flatnonzero((probs > 0) != (expected > 0))
        ties += len(differ) > 0
        if len(differ):
            assert len(set(logits[differ])) == 1, f"candidates of row {i}"
            assert rows["top_p"][i] < 1, f"candidates of row {i}"
        else:
            np.testing.assert_allclose(probs, expected, atol=1e-6, err_msg=f"row {i}")
    assert ties < len(rows["logits"]) / 4
