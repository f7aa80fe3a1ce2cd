"""The quality gate: its measures on known distributions, and that damage is found."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from kazeia_engine import InvalidInput, ModelFormatError, ModelNotFound
from kazeia_engine.modelfiles import find_pair
from kazeia_engine.tools.cli import app
from kazeia_engine.tools.quality import (
    MAX_SNR,
    Limits,
    compare_logits,
    decoder_codes,
    quality,
    signal_to_noise,
)
from kazeia_engine.tools.quantize import quantize
from kazeia_engine.tools.synth import synth

TEXTS = ("the voix of the people", "bonjour, small world")
Q4_0 = gguf.GGMLQuantizationType.Q4_0


def judge(path: Path, reference: Path, **options: Any) -> dict[str, Any]:
    return quality(path, reference, **{"frames": 12, "texts": TEXTS, **options})


@pytest.fixture(scope="module")
def exact(golden_models: dict[str, Path]) -> Path:
    return golden_models["custom-projected"]


@pytest.fixture(scope="module")
def eight(exact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("eight")
    quantize(exact, out, talker_type="q8_0", cp_type="q8_0", decoder_type="f16")
    return out


class TestMeasures:
    def test_a_divergence_computed_by_hand(self) -> None:
        p = np.array([[0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125]])
        q = np.array([[0.25, 0.5, 0.125, 0.0625, 0.03125, 0.03125]])
        d = compare_logits(np.log(p).astype(np.float32), np.log(q).astype(np.float32) + 3)
        assert d.kl_mean == pytest.approx(0.25 * np.log(2), abs=1e-6)
        assert (d.choices, d.top1) == (1, 0.0)

    def test_mean_percentile_and_maximum(self) -> None:
        reference = np.zeros((200, 8), np.float32)
        reference[:, 0] = 1
        other = reference.copy()
        other[7] = 0  # one choice in 200 differs
        d = compare_logits(reference, other)
        assert d.kl_max > 0.01
        assert d.kl_mean == pytest.approx(d.kl_max / 200)
        assert d.kl_p99 == 0

    def test_the_first_five(self) -> None:
        reference = np.arange(10, dtype=np.float32)[None] * np.ones((4, 1), np.float32)
        other = reference.copy()
        other[0, 5] = -1  # one of the five leaves, 4 takes its place
        other[1, [8, 9]] = other[1, [9, 8]]  # the order within changes
        other[2] = -other[2]  # none is left
        d = compare_logits(reference, other)
        assert d.top1 == 0.5
        assert d.top5 == pytest.approx((0.8 + 1 + 0 + 1) / 4)

    def test_signal_to_noise(self) -> None:
        pcm = np.sin(np.arange(2000)).astype(np.float32) * 0.5
        assert signal_to_noise(pcm, pcm) == MAX_SNR
        assert signal_to_noise(pcm, pcm * np.float32(1.01)) == pytest.approx(40, abs=0.01)
        assert signal_to_noise(pcm, -pcm) == pytest.approx(-6.02, abs=0.01)
        with pytest.raises(ModelFormatError, match="silence"):
            signal_to_noise(pcm * 0, pcm)

    def test_codes_for_the_decoder(self) -> None:
        codes = decoder_codes(50, 16, 64)
        assert {c.shape for c in codes.values()} == {(50, 16)}
        assert all(c.min() >= 0 and c.max() < 64 for c in codes.values())
        changes = (np.diff(codes["slow"], axis=0) != 0).sum(axis=1)
        assert changes.max() == 1
        assert changes.mean() > 0.9
        assert (np.diff(codes["random"], axis=0) != 0).mean() > 0.95
        again = decoder_codes(50, 16, 64)
        assert all(np.array_equal(codes[name], again[name]) for name in codes)

    def test_limits_follow_the_format(self) -> None:
        for wrong in ({"snr": math.nan}, {"snr": -1.0}, {"snr": 151.0}, {"talker": math.nan}):
            with pytest.raises(InvalidInput, match=f"min_{next(iter(wrong))} is .*expected 0"):
                Limits(**wrong)
        with pytest.raises(InvalidInput, match=r"min_cp is 75, expected 0\.\.1"):
            Limits(cp=75.0)
        eight = Limits().resolved({"talker": "q8_0", "cp": "bf16"})
        assert (eight.talker, eight.cp, eight.snr) == (0.95, 0.75, 35.0)
        four = Limits(snr=50).resolved({"talker": "q4_0", "cp": "q5_1"})
        assert (four.talker, four.cp, four.snr) == (0.80, 0.40, 50)
        chosen = Limits(talker=0.0, cp=1.0).resolved({"talker": "q4_0", "cp": "q4_0"})
        assert (chosen.talker, chosen.cp) == (0.0, 1.0)


class TestModels:
    def test_a_model_is_itself(self, exact: Path) -> None:
        figures = judge(exact, exact)
        assert figures["failures"] == []
        for row in (figures["talker"], figures["cp"], *figures["codebooks"]):
            assert row["kl_max"] < 1e-6
            assert (row["top1"], row["top5"]) == (1.0, 1.0)
        assert set(figures["decoder"]) == {"random", "slow", "spoken"}
        assert min(figures["decoder"].values()) > 100
        assert len(figures["codebooks"]) == 16
        assert figures["frames"] == 24
        assert (figures["talker"]["choices"], figures["cp"]["choices"]) == (24, 24 * 15)
        assert figures["notes"] == []

    def test_eight_bits_pass(self, exact: Path, eight: Path) -> None:
        figures = judge(eight, exact)
        assert figures["failures"] == []
        assert 0 < figures["talker"]["kl_mean"] < 2e-3
        assert 0 < figures["cp"]["kl_mean"] < 5e-3
        assert all(38 < snr < 60 for snr in figures["decoder"].values())
        pair = find_pair(eight)
        sizes = {"talker": pair.talker.stat().st_size, "codec": pair.codec.stat().st_size}
        assert figures["bytes"]["model"] == sizes
        assert sizes["talker"] < figures["bytes"]["reference"]["talker"]

    @pytest.mark.parametrize("model", ["custom-projected", "custom-equal"])
    def test_fitted_scales_beat_rounded_ones(
        self,
        golden_models: dict[str, Path],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        model: str,
    ) -> None:
        source, divergence = golden_models[model], {}
        for name in ("fitted", "rounded"):
            if name == "rounded":

                def rounded(blocks: npt.NDArray[np.float32]) -> Any:
                    return gguf.quants.quantize(blocks, Q4_0)

                monkeypatch.setattr("kazeia_engine.tools.encoding._q4_0", rounded)
            quantize(source, tmp_path / name, talker_type="q4_0", cp_type="q4_0")
            figures = judge(tmp_path / name, source, frames=32)
            divergence[name] = figures["cp"]["kl_mean"]
        assert 0.01 < divergence["fitted"] < 0.96 * divergence["rounded"]

    def test_the_reference_may_be_quantised(self, eight: Path) -> None:
        """Its weights dequantised are the reference; what is left is the rounding of products."""
        exactly = judge(eight, eight)
        assert 0 < exactly["talker"]["kl_mean"] < 1e-3
        assert exactly["reference_formats"]["talker"] == "f32"
        as_stored = judge(eight, eight, precision="auto")
        assert as_stored["talker"]["kl_max"] < 1e-6

    def test_random_weights_are_named(self, tmp_path: Path) -> None:
        synth(tmp_path, size="tiny", type="q8_0")
        figures = judge(tmp_path, tmp_path, frames=2)
        assert any("random weights" in note for note in figures["notes"])


def damage(source: Path, target: Path, name: str, change: Callable[[Any], None]) -> Path:
    """A copy of a pair with one f32 tensor changed in place."""
    shutil.copytree(source, target)
    pair, found = find_pair(target), 0
    for path in (pair.talker, pair.codec):
        reader = gguf.GGUFReader(path, "r+")
        for tensor in reader.tensors:
            if tensor.name == name:
                change(tensor.data)
                found += 1
        reader.data.flush()
    assert found == 1
    return target


class TestDamage:
    @pytest.mark.parametrize(
        ("tensor", "part"),
        [
            ("blk.0.ffn_down.weight", "the talker agrees"),
            ("a.gen.code.blk.1.attn_out.weight", "the code predictor agrees"),
            ("a.gen.wav.dac.blk.1.res.0.conv1.weight", "decoder, slow codes"),
        ],
    )
    def test_a_wrong_matrix_fails_its_part(
        self, exact: Path, tmp_path: Path, tensor: str, part: str
    ) -> None:
        def change(data: Any) -> None:
            data[:] = 4 * data[::-1].copy()

        figures = judge(damage(exact, tmp_path / "bad", tensor, change), exact)
        assert any(failure.startswith(part) for failure in figures["failures"])
        if part.startswith("decoder"):
            assert figures["talker"]["top1"] == 1.0
            assert len(figures["failures"]) == 3

    def test_one_damaged_head_is_found_in_its_row(self, exact: Path, tmp_path: Path) -> None:
        def change(data: Any) -> None:
            data[6] = -data[6]

        bad = damage(exact, tmp_path / "bad", "a.gen.code.head.weight", change)
        tops = [row["top1"] for row in judge(bad, exact)["codebooks"]]
        assert tops[7] < 0.2
        assert tops[:7] + tops[8:] == [1.0] * 15


class TestRefusals:
    def test_another_model(self, golden_models: dict[str, Path], exact: Path) -> None:
        with pytest.raises(InvalidInput, match="not two formats of one model") as caught:
            judge(golden_models["custom-equal"], exact, frames=2)
        assert caught.value.param == "reference"

    def test_wrong_numbers(self, exact: Path) -> None:
        with pytest.raises(InvalidInput, match="frames is 1"):
            judge(exact, exact, frames=1)
        with pytest.raises(InvalidInput, match="texts are empty"):
            judge(exact, exact, texts=())

    def test_missing_models(self, exact: Path, tmp_path: Path) -> None:
        for pair in ((tmp_path / "none", exact), (exact, tmp_path / "none")):
            with pytest.raises(ModelNotFound, match="none does not exist"):
                judge(*pair)


class TestCommand:
    def run(self, *arguments: str | Path, expect: int = 0) -> Any:
        result = CliRunner().invoke(app, ["quality", *map(str, arguments)])
        assert result.exit_code == expect, (result.output, result.exception)
        return result

    def test_a_pass(self, exact: Path, eight: Path, tmp_path: Path) -> None:
        target = tmp_path / "q.json"
        options = ("--model", eight, "--reference", exact, "--frames", "4", "--json", target)
        out = self.run(*options).stdout
        figures = json.loads(target.read_text())
        assert figures["failures"] == []
        assert len([x for x in out.splitlines() if x.split() and x.split()[0].isdecimal()]) == 16
        assert f"{figures['decoder']['slow']:.1f} dB" in out
        assert "gate: talker 95%, code predictor 75%, decoder 35 dB" in out

    def test_a_failure(self, exact: Path, eight: Path) -> None:
        options = ("--model", eight, "--reference", exact, "--frames", "2", "--min-snr", "90")
        result = self.run(*options, expect=1)
        assert "error: below the gate: decoder, random codes" in result.stderr
        assert "codebook" in result.stdout  # the figures are shown all the same

    def test_refusals(self, exact: Path, tmp_path: Path) -> None:
        for options in (
            ("--model", exact, "--reference", tmp_path / "none"),
            ("--model", exact, "--reference", exact, "--frames", "1"),
            ("--model", exact, "--reference", exact, "--json", tmp_path / "no" / "x.json"),
            ("--model", exact, "--reference", exact, "--json", tmp_path),
        ):
            stderr = self.run(*options, expect=2).stderr
            assert len([x for x in stderr.splitlines() if x.startswith("error: ")]) == 1
