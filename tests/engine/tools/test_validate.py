"""The checks of `kazeia validate`, and that each of them can fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kazeia_engine import InvalidInput, Model, Result
from kazeia_engine.tools.synth import synth
from kazeia_engine.tools.validate import (
    MAX_LOGITS_DIFFERENCE,
    MAX_PCM_DIFFERENCE,
    Check,
    compare_codes,
    compare_logits,
    compare_pcm,
    validate,
)


@pytest.fixture(scope="module")
def model(golden_models: dict[str, Path]) -> Iterator[Model]:
    with Model.load(golden_models["custom-equal"]) as loaded:
        yield loaded


class Faulty:
    """A model with one fault: `fault` changes the results of some runs."""

    def __init__(self, model: Model, fault: Any) -> None:
        self.info = model.info
        self._model = model
        self._fault = fault

    def synthesize(self, text: str, **options: Any) -> Result:
        return self._fault(options, self._model.synthesize(text, **options))

    def measure_passes(self, threads: int) -> tuple[float, float] | None:
        return self._model.measure_passes(threads)

    def decode(self, codes: Any, *, chunk: int = 0) -> Any:
        result = self._model.decode(codes, chunk=chunk)
        return result + 2 * MAX_PCM_DIFFERENCE if self._fault is decoder_drift and chunk else result


def decoder_drift(_options: dict[str, Any], result: Result) -> Result:
    return result


def one_code_off(result: Result, codebook: int) -> Result:
    codes = result.codes.copy()
    codes[-1, codebook] ^= 1
    return replace(result, codes=codes)


def failing(model: Any, **options: Any) -> set[str]:
    return {c.name for c in validate(model, **options) if not c.passed}


def test_a_sound_model_passes(model: Model) -> None:
    checks = list(validate(model))
    assert [c for c in checks if not c.passed] == []
    assert checks[0].detail == "495/495 codes match"
    assert len({c.name for c in checks}) == len(checks)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (
            lambda o, r: one_code_off(r, 15) if o.get("cp_cache") is False else r,
            {"code predictor, cached = recomputed", "the same, greedy"},
        ),
        (
            lambda o, r: one_code_off(r, 0) if o["chunk"] == 4 else r,
            {"codes in chunks of 4 = in one"},
        ),
        (
            lambda o, r: replace(r, pcm=r.pcm + 1e-3) if o["chunk"] == "auto" else r,
            {"audio in chunks of auto = in one"},
        ),
        (
            lambda o, r: replace(r, pcm=r.pcm[:-1]) if o["chunk"] == 4 else r,
            {"audio in chunks of 4 = in one"},
        ),
        (decoder_drift, {f"decode in chunks of {k} = at once" for k in (1, 3, 7)}),
    ],
    ids=["cp cache", "chunked codes", "chunked audio", "lost sample", "decoder"],
)
def test_a_fault_is_found(model: Model, fault: Any, expected: set[str]) -> None:
    assert failing(Faulty(model, fault), frames=9) == expected


class ThroughGgml(Faulty):
    """A model whose products round otherwise when they have other numbers of rows.

    error: of the recomputing code predictor's logits, relative to their size.
    """

    def __init__(self, model: Model, error: float) -> None:
        super().__init__(model, lambda o, r: one_code_off(r, 9) if "cp_cache" in o else r)
        self._error = error

    def measure_passes(self, threads: int) -> tuple[float, float] | None:
        return None

    def trace(self, text: str, *, cp_cache: bool, **options: Any) -> dict[str, Any]:
        found = self._model.trace(text, cp_cache=cp_cache, **options)
        if cp_cache:
            return found
        return {**found, "cp_logits": found["cp_logits"] * np.float32(1 + self._error)}


def test_rounding_is_no_fault_where_ggml_multiplies(model: Model) -> None:
    near = ThroughGgml(model, MAX_LOGITS_DIFFERENCE / 2)
    checks = list(validate(near, frames=9))
    assert [c for c in checks if not c.passed] == []
    for check in checks[:2]:
        assert re.fullmatch(r"134/135 codes match; .*: logits differ by at most 2.4%", check.detail)


@pytest.mark.parametrize("error", [2 * MAX_LOGITS_DIFFERENCE, np.nan])
def test_more_than_rounding_is_a_fault(model: Model, error: float) -> None:
    expected = {"code predictor, cached = recomputed", "the same, greedy"}
    assert failing(ThroughGgml(model, error), frames=9) == expected


def test_models_of_k_quants_pass(tmp_path: Path) -> None:
    synth(tmp_path, size="tiny", type="q8_0", cp_type="q5_k")
    with Model.load(tmp_path, backend="ggml") as mixed:
        assert mixed.measure_passes(1) is None
        assert failing(mixed, frames=5) == set()


def test_a_seed_that_is_ignored_is_found(model: Model) -> None:
    class Deaf(Faulty):
        def synthesize(self, text: str, **options: Any) -> Result:
            return self._model.synthesize(text, **{**options, "seed": 1})

    assert failing(Deaf(model, None), frames=5) == {"another seed, other codes"}


def test_a_run_that_never_repeats_is_found(model: Model) -> None:
    class Restless(Faulty):
        calls = 0

        def synthesize(self, text: str, **options: Any) -> Result:
            self.calls += 1
            return self._model.synthesize(text, **{**options, "seed": self.calls})

    found = failing(Restless(model, None), frames=5)
    assert {"the same seed, the same codes", "beside another stream = alone"} <= found


def test_codes_are_counted() -> None:
    a = np.arange(32, dtype=np.int32).reshape(2, 16)
    b = a.copy()
    assert compare_codes("x", a, b, 1) == Check("x", True, "30/30 codes match")
    b[1, 3] = 99
    assert compare_codes("x", a, b, 1) == Check(
        "x", False, "29/30 codes match; first difference in frame 1"
    )
    assert compare_codes("x", a[:1], a) == Check(
        "x", False, "16/32 codes match; first difference in frame 1"
    )
    assert not compare_codes("x", a[:0], a[:0]).passed


def test_logits_are_compared_row_by_row() -> None:
    expected = np.ones((3, 2, 50), np.float32)
    assert compare_logits("x", expected, expected).passed
    off = expected.copy()
    off[1, 1] *= 1 + 2 * MAX_LOGITS_DIFFERENCE  # 1.7 % of all of them
    assert compare_logits("x", off, expected) == Check("x", False, "logits differ by at most 10.0%")
    assert not compare_logits("x", expected[:2], expected).passed
    assert not compare_logits("x", expected[:0], expected[:0]).passed


@pytest.mark.parametrize("sign", [1, -1])
def test_waveforms_are_compared(sign: int) -> None:
    expected = np.full(100, sign * 0.5, np.float32)
    assert compare_pcm("x", expected, expected).passed
    off = expected.copy()
    off[7] -= 3 * MAX_PCM_DIFFERENCE
    check = compare_pcm("x", off, expected)
    assert not check.passed
    assert "at sample 7" in check.detail
    off[7] = np.nan
    assert not compare_pcm("x", off, expected).passed
    assert not compare_pcm("x", expected[:-1], expected).passed
    assert not compare_pcm("x", expected[:0], expected[:0]).passed


def test_too_few_frames(model: Model) -> None:
    with pytest.raises(InvalidInput, match="frames is 1, expected 2 or more"):
        list(validate(model, frames=1))
