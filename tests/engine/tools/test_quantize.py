"""Weight types: how rows are encoded, and pairs rewritten in other types."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from kazeia_engine import InvalidInput, Model, ModelFormatError, ModelNotFound
from kazeia_engine.modelfiles import find_pair
from kazeia_engine.tools.cli import app
from kazeia_engine.tools.convert import convert
from kazeia_engine.tools.encoding import decode, encode, encode_tensor
from kazeia_engine.tools.gguf_layout import SpeakerShape, codec_tensors, spec_of, talker_tensors
from kazeia_engine.tools.quantize import quantize
from kazeia_engine.tools.synth import SIZES, shape_of, synth

Q4_0, Q8_0 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0
Rows = npt.NDArray[np.float32]


def nearest(rows: Rows) -> Rows:
    """`rows` through q4_0 as ggml rounds it."""
    out: Rows = gguf.quants.dequantize(gguf.quants.quantize(rows, Q4_0), Q4_0)
    return out


def errors(rows: Rows, back: Rows) -> npt.NDArray[np.float64]:
    """Squared error of each block of 32."""
    difference = rows.astype(np.float64) - back
    return np.square(difference).reshape(-1, 32).sum(axis=1)


def tensors(path: Path) -> dict[str, Any]:
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def kind(tensor: Any) -> str:
    return str(tensor.tensor_type.name.lower())


def keys(path: Path) -> dict[str, Any]:
    return {name: f.contents() for name, f in gguf.GGUFReader(path).fields.items()}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in f32, with the codec vocabulary that llama.cpp insists on."""
    out = tmp_path_factory.mktemp("tiny-f32")
    synth(out, size="tiny", type="f32", seed=5)
    return out


class TestFourBits:
    @pytest.mark.parametrize("shape", ["normal", "laplace", "uniform", "standard_cauchy"])
    def test_no_block_is_worse_than_rounded(self, shape: str) -> None:
        rng = np.random.default_rng(1)
        rows = getattr(rng, shape)(size=(64, 512)).astype(np.float32)
        ours, theirs = (
            errors(rows, decode(encode(rows, "q4_0"), "q4_0")),
            errors(rows, nearest(rows)),
        )
        assert (ours <= theirs * (1 + 1e-5)).all()
        assert ours.sum() < theirs.sum()

    @pytest.mark.parametrize("model", ["custom-projected", "custom-equal", "design", "base"])
    def test_every_tensor_gains(self, golden_models: dict[str, Path], model: str) -> None:
        pair = find_pair(golden_models[model])
        tried = 0
        for path in (pair.talker, pair.codec):
            for name, tensor in tensors(path).items():
                if spec_of(name, tensor.data.shape).role != "matrix" or tensor.shape[0] % 32:
                    continue
                rows = np.ascontiguousarray(tensor.data.reshape(-1, tensor.shape[0]))
                ours = errors(rows, decode(encode(rows, "q4_0"), "q4_0")).sum()
                assert ours < 0.95 * errors(rows, nearest(rows)).sum(), name
                tried += 1
        assert tried > 20

    def test_it_is_close_to_the_best_there_is(self) -> None:
        """Against a search over 4000 scales a block."""
        rows = np.random.default_rng(2).standard_normal((1, 64 * 32)).astype(np.float32)
        blocks = rows.reshape(-1, 32)
        best = np.full(len(blocks), np.inf)
        for ratio in np.concatenate([np.linspace(-16, -4, 2000), np.linspace(4, 16, 2000)]):
            scale = (np.abs(blocks).max(axis=1) / ratio).astype(np.float16).astype(np.float32)
            q = np.clip(np.rint(blocks / scale[:, None]), -8, 7)
            best = np.minimum(best, np.square(blocks - q * scale[:, None]).sum(axis=1))
        ours = errors(rows, decode(encode(rows, "q4_0"), "q4_0"))
        assert ours.sum() < 1.01 * best.sum()
        assert ours.sum() > 0.999 * best.sum()  # the search is no worse than what it judges

    @pytest.mark.parametrize("scale", [1e-6, 0.0371, -2.5, 1000.0])
    def test_what_fits_is_kept_exactly(self, scale: float) -> None:
        q = np.random.default_rng(3).integers(-8, 8, (40, 32)).astype(np.float32)
        q[:, 5] = -8  # a block that reaches the end of the range fixes its scale
        rows = q * np.float32(np.float16(scale))
        np.testing.assert_array_equal(decode(encode(rows, "q4_0"), "q4_0"), rows)

    def test_blocks_at_the_ends_of_the_range(self) -> None:
        rows = np.zeros((1, 5 * 32), np.float32)
        rows[0, 32:64] = 1e-42  # below f16, and its inverse beyond f32
        rows[0, 64:96] = np.linspace(-1e-20, 1e-20, 32)
        rows[0, 96:128] = 5 * 65504.0
        rows[0, 128] = 1.0
        back = decode(encode_tensor("w", rows, "q4_0"), "q4_0")
        assert not back[0, :96].any()
        np.testing.assert_allclose(back[0, 96:], rows[0, 96:], rtol=1e-3)

    def test_more_blocks_than_are_fitted_at_once(self) -> None:
        rows = np.random.default_rng(4).standard_normal((300, 1024)).astype(np.float32)
        whole = encode(rows, "q4_0")
        apart = np.concatenate([encode(rows[i : i + 1], "q4_0") for i in range(300)])
        np.testing.assert_array_equal(whole, apart)


def test_eight_bits_are_those_of_ggml() -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((200, 256)).astype(np.float32) * np.geomspace(1e-6, 1e4, 256)
    rows = rows.astype(np.float32)
    rows[3] = 0
    rows[4, 32:64] = 0
    np.testing.assert_array_equal(encode(rows, "q8_0"), gguf.quants.quantize(rows, Q8_0))


@pytest.mark.parametrize("type", ["f32", "f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_by_name(type: str, value: float) -> None:
    rows = np.zeros((2, 32), np.float32)
    rows[1, 7] = value
    with pytest.raises(ModelFormatError, match=r"blk\.3\.w holds a NaN or an infinity"):
        encode_tensor("blk.3.w", rows, type)


@pytest.mark.parametrize(("type", "value"), [("f16", -7e4), ("q8_0", 9e6), ("q4_0", -4e5)])
def test_what_is_too_large_is_refused_by_name(type: str, value: float) -> None:
    rows = np.full((1, 32), value, np.float32)
    with pytest.raises(ModelFormatError, match=rf"blk\.3\.w .*beyond the range of {type}"):
        encode_tensor("blk.3.w", rows, type)


@pytest.mark.parametrize("size", SIZES)
def test_names_tell_part_and_role(size: str) -> None:
    shape = dataclasses.replace(shape_of(size), speaker=SpeakerShape(64, (64, 64, 64, 64, 192)))
    specs = [*talker_tensors(shape), *codec_tensors(shape)]
    for spec in specs:
        found = spec_of(spec.name, spec.shape)
        assert (found.part, found.role) == (spec.part, spec.role), spec.name
    assert {s.part for s in specs} == {"talker", "cp", "decoder", "speaker"}


class TestPairs:
    @pytest.mark.parametrize("model", ["custom-projected", "base"])
    @pytest.mark.parametrize(
        ("talker", "cp", "decoder"),
        [
            ("q8_0", "q8_0", "f16"),
            ("q4_0", "q8_0", "f16"),
            ("q4_0", "q4_0", "f32"),
            ("bf16", "f16", "f16"),
        ],
    )
    def test_equal_to_a_conversion(
        self,
        golden_dir: Path,
        golden_models: dict[str, Path],
        tmp_path: Path,
        model: str,
        talker: str,
        cp: str,
        decoder: str,
    ) -> None:
        types = {"talker_type": talker, "cp_type": cp, "decoder_type": decoder}
        made = quantize(golden_models[model], tmp_path / "made", **types)
        expected = convert(golden_dir / model, tmp_path / "expected", **types)
        assert made.talker.name == expected.talker.name
        assert made.codec.name == expected.codec.name
        assert made.talker.read_bytes() == expected.talker.read_bytes()
        assert made.codec.read_bytes() == expected.codec.read_bytes()
        assert made.types == expected.types
        assert made.talker_bytes == made.talker.stat().st_size

    @pytest.mark.parametrize("type", ["f32", "f16", "bf16", "q8_0", "q4_0"])
    def test_every_type_speaks(self, tiny: Path, tmp_path: Path, type: str) -> None:
        quantize(tiny, tmp_path, talker_type=type, cp_type=type, decoder_type="f16")
        with Model.load(tmp_path) as model:
            result = model.synthesize("hello", speaker="ryan", max_frames=3, ignore_eos=True)
            assert np.isfinite(result.pcm).all()
            assert np.abs(result.pcm).max() > 0
            formats = model.info.formats
        assert (formats["talker"], formats["cp"]) == (type, type)
        lossy = " (lossy)" if type == "q4_0" else ""
        assert formats["quantization"] == f"talker {type}, cp {type}{lossy}, decoder f16"

    def test_back_to_f32_changes_nothing_more(self, tiny: Path, tmp_path: Path) -> None:
        small = quantize(tiny, tmp_path / "8", talker_type="q8_0", cp_type="bf16")
        large = quantize(tmp_path / "8", tmp_path / "32", talker_type="f32", cp_type="f32")
        assert any("talker goes from q8_0 to f32" in note for note in large.notes)
        for a, b in ((small.talker, large.talker), (small.codec, large.codec)):
            after = tensors(b)
            for name, tensor in tensors(a).items():
                values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                assert kind(after[name]) == "f32", name
                np.testing.assert_array_equal(
                    values, after[name].data.reshape(values.shape), err_msg=name
                )

    def test_what_is_not_asked_for_is_copied(self, tiny: Path, tmp_path: Path) -> None:
        made = quantize(tiny, tmp_path, talker_type="q4_0")
        before, after = tensors(find_pair(tiny).codec), tensors(made.codec)
        assert list(before) == list(after)
        for name, tensor in before.items():
            assert kind(after[name]) == kind(tensor)
            np.testing.assert_array_equal(after[name].data, tensor.data)
        talker = tensors(made.talker)
        assert kind(talker["blk.0.attn_q.weight"]) == "q4_0"
        assert kind(talker["token_embd.weight"]) == kind(talker["output.weight"]) == "q8_0"
        assert kind(talker["blk.0.attn_norm.weight"]) == "f32"

    def test_metadata(self, tiny: Path, tmp_path: Path) -> None:
        made = quantize(tiny, tmp_path, talker_type="q4_0", cp_type="q8_0", decoder_type="f16")
        source = find_pair(tiny)
        changed = {"general.file_type", "kazeia.quantization"}
        for before, after in ((source.talker, made.talker), (source.codec, made.codec)):
            a, b = keys(before), keys(after)
            assert list(a) == list(b)
            assert {name for name in a if a[name] != b[name]} == changed
        assert keys(made.talker)["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q4_0
        assert keys(made.codec)["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q8_0
        assert keys(made.talker)["kazeia.quantization"] == "talker q4_0"
        assert keys(made.codec)["kazeia.quantization"] == "cp q8_0, decoder f16"

    def test_eight_bits_may_be_rounded_again(self, tiny: Path, tmp_path: Path) -> None:
        quantize(tiny, tmp_path / "8", talker_type="q8_0", cp_type="q8_0")
        made = quantize(tmp_path / "8", tmp_path / "4", talker_type="q4_0")
        assert [n for n in made.notes if "first rounding" in n] == [
            "the talker goes from q8_0 to q4_0: its first rounding stays in the weights"
        ]

    def test_four_bits_may_not(self, tiny: Path, tmp_path: Path) -> None:
        quantize(tiny, tmp_path / "4", talker_type="q4_0", cp_type="q8_0")
        with pytest.raises(InvalidInput, match=r"the talker has q4_0 weights.*f32, f16, bf16"):
            quantize(tmp_path / "4", tmp_path / "8", talker_type="q8_0")
        assert not (tmp_path / "8").exists()
        kept = quantize(tmp_path / "4", tmp_path / "f16", decoder_type="f16")
        assert kept.types.talker == "q4_0"

    def test_a_pair_of_llama_cpp(self, golden_dir: Path, tmp_path: Path) -> None:
        made = quantize(golden_dir / "llamacpp-base", tmp_path, talker_type="q8_0", cp_type="q8_0")
        assert keys(made.talker)["kazeia.quantization"] == "talker q8_0"
        with Model.load(tmp_path) as model:
            assert model.info.formats["talker"] == "q8_0"
            assert len(model.synthesize("a", max_frames=2, ignore_eos=True).codes) == 2

    @pytest.mark.parametrize("type", ["q8_0", "q4_0"])
    def test_llama_cpp_loads_it(self, tiny: Path, tmp_path: Path, type: str) -> None:
        made = quantize(tiny, tmp_path, talker_type=type, cp_type=type, decoder_type="f16")
        code = (
            "import sys, llama_cpp\n"
            "from llama_cpp import mtmd_cpp as mtmd\n"
            "talker, codec = (name.encode() for name in sys.argv[1:])\n"
            "params = llama_cpp.llama_model_default_params()\n"
            "model = llama_cpp.llama_model_load_from_file(talker, params)\n"
            "assert model, 'talker'\n"
            "context = mtmd.mtmd_context_params_default()\n"
            "context.use_gpu, context.n_threads = False, 1\n"
            "assert mtmd.mtmd_init_from_file(codec, model, context), 'codec'\n"
        )
        command = [sys.executable, "-c", code, str(made.talker), str(made.codec)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]


class TestRefusals:
    @pytest.mark.parametrize(
        ("part", "type", "offered"),
        [
            ("talker", "q4_k", "f32, f16, bf16, q8_0, q4_0"),
            ("cp", "int8", "f32, f16, bf16, q8_0, q4_0"),
            ("decoder", "q8_0", "f32, f16"),
            ("decoder", "bf16", "f32, f16"),
        ],
    )
    def test_unknown_types(
        self, tiny: Path, tmp_path: Path, part: str, type: str, offered: str
    ) -> None:
        with pytest.raises(InvalidInput, match=f"expected one of {offered}$") as caught:
            quantize(tiny, tmp_path / "out", **{f"{part}_type": type})
        assert caught.value.param == f"{part}_type"
        assert not (tmp_path / "out").exists()

    def test_nothing_to_do(self, tiny: Path, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="nothing to do"):
            quantize(tiny, tmp_path / "out")

    def test_missing_source(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFound, match="none does not exist"):
            quantize(tmp_path / "none", tmp_path / "out", talker_type="q8_0")

    def test_halves_of_different_models(
        self, tiny: Path, golden_models: dict[str, Path], tmp_path: Path
    ) -> None:
        shutil.copy(find_pair(tiny).talker, tmp_path)
        shutil.copy(find_pair(golden_models["base"]).codec, tmp_path)
        with pytest.raises(ModelFormatError, match="does not fit"):
            quantize(tmp_path, tmp_path / "out", talker_type="q8_0")

    def test_its_own_folder(self, tiny: Path) -> None:
        for source in (tiny, find_pair(tiny).talker):
            with pytest.raises(InvalidInput, match="folder of the model itself"):
                quantize(source, tiny, talker_type="q8_0", force=True)

    def test_a_file_in_the_way(self, tiny: Path, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("here")
        with pytest.raises(InvalidInput, match="not a folder"):
            quantize(tiny, tmp_path / "out", talker_type="q8_0")

    def test_files_that_are_there(self, tiny: Path, tmp_path: Path) -> None:
        made = quantize(tiny, tmp_path, talker_type="q8_0")
        first = made.talker.read_bytes()
        made.talker.write_bytes(b"old")
        with pytest.raises(InvalidInput, match="--force"):
            quantize(tiny, tmp_path, talker_type="q8_0")
        assert made.talker.read_bytes() == b"old"
        quantize(tiny, tmp_path, talker_type="q8_0", force=True)
        assert made.talker.read_bytes() == first
        (tmp_path / "other.gguf").write_bytes(b"other")
        with pytest.raises(InvalidInput, match=r"another model \(other\.gguf\)"):
            quantize(tiny, tmp_path, talker_type="q8_0", force=True)

    def test_force_replaces_the_same_model_in_another_type(
        self, tiny: Path, tmp_path: Path
    ) -> None:
        first = quantize(tiny, tmp_path, talker_type="q8_0")
        with pytest.raises(InvalidInput, match="--force"):
            quantize(tiny, tmp_path, talker_type="q4_0")
        second = quantize(tiny, tmp_path, talker_type="q4_0", force=True)
        assert not first.talker.exists()
        assert find_pair(tmp_path).talker == second.talker

    def test_two_runs_into_one_folder_leave_one_model(self, tiny: Path, tmp_path: Path) -> None:
        made = []

        def meanwhile(_name: str, done: int, total: int) -> None:
            if done == total and not made:
                made.append(None)
                made[0] = quantize(tiny, tmp_path, talker_type="q4_0")

        with pytest.raises(InvalidInput, match=r"talker-Q4_0\.gguf: --force"):
            quantize(tiny, tmp_path, talker_type="q8_0", progress=meanwhile)
        assert find_pair(tmp_path).talker == made[0].talker
        assert list(tmp_path.glob(".*")) == []

    def test_a_source_that_is_cut_in_place_is_told(self, tiny: Path, tmp_path: Path) -> None:
        shutil.copytree(tiny, tmp_path / "bad")
        codec = find_pair(tmp_path / "bad").codec

        def cut(_name: str, _done: int, _total: int) -> None:
            os.truncate(codec, codec.stat().st_size // 2)

        with pytest.raises(ModelFormatError, match=rf"{codec.name} is truncated"):
            quantize(tmp_path / "bad", tmp_path / "out", talker_type="q4_0", progress=cut)
        assert not (tmp_path / "out").exists()

    def test_a_full_disk(self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = shutil._ntuple_diskusage(10**9, 10**9 - 10**6, 10**6)
        monkeypatch.setattr("kazeia_engine.tools.quantize.shutil.disk_usage", lambda _path: usage)
        with pytest.raises(OSError, match="has 1 MB free, the files take"):
            quantize(tiny, tmp_path / "out", talker_type="q8_0")
        assert not (tmp_path / "out").exists()

    def test_nothing_is_left_behind_when_it_fails(self, tiny: Path, tmp_path: Path) -> None:
        shutil.copytree(tiny, tmp_path / "bad")
        codec = find_pair(tmp_path / "bad").codec
        reader = gguf.GGUFReader(codec, "r+")
        poisoned = next(t for t in reader.tensors if t.name == "a.gen.code.blk.1.ffn_up.weight")
        poisoned.data[3, 5] = np.nan
        reader.data.flush()
        with pytest.raises(ModelFormatError, match=r"a\.gen\.code\.blk\.1\.ffn_up.*NaN"):
            quantize(tmp_path / "bad", tmp_path / "out", talker_type="q4_0", cp_type="q8_0")
        assert not (tmp_path / "out").exists()


class TestCommand:
    def run(self, *arguments: str | Path, expect: int = 0) -> Any:
        result = CliRunner().invoke(app, ["quantize", *map(str, arguments)])
        assert result.exit_code == expect, (result.output, result.exception)
        return result

    def test_four_and_eight_bits(self, tiny: Path, tmp_path: Path) -> None:
        options = ("--talker", "q4_0", "--cp", "q8_0", "--decoder", "f16")
        result = self.run(tiny, tmp_path / "out", *options)
        pair = find_pair(tmp_path / "out")
        assert str(pair.talker) in result.stdout.replace("\n", "")
        assert "100 %" in result.stderr
        assert "lossy" not in result.stderr

    def test_all_four_bits_warn(self, tiny: Path, tmp_path: Path) -> None:
        result = self.run(tiny, tmp_path / "out", "--talker", "q4_0", "--cp", "q4_0")
        assert "warning: lossy: the code predictor needs 8 bits" in result.stderr

    def test_refusals_are_one_line(self, tiny: Path, tmp_path: Path) -> None:
        for arguments in (
            (tiny, tmp_path / "out"),
            (tiny, tiny, "--talker", "q8_0"),
            (tiny, tmp_path / "out", "--decoder", "q8_0"),
            (tmp_path / "none", tmp_path / "out", "--talker", "q8_0"),
        ):
            stderr = self.run(*arguments, expect=2).stderr
            assert len([x for x in stderr.splitlines() if x.startswith("error: ")]) == 1
            assert "Traceback" not in stderr


def test_conversions_choose_their_parts_too(golden_dir: Path, tmp_path: Path) -> None:
    options = ["--type", "q8_0", "--talker", "q4_0", "--decoder", "f32"]
    for name, arguments in (
        ("convert", ["convert", str(golden_dir / "design"), "-o", str(tmp_path / "convert")]),
        ("synth", ["synth", "--size", "tiny", "-o", str(tmp_path / "synth")]),
    ):
        result = CliRunner().invoke(app, [*arguments, *options])
        assert result.exit_code == 0, result.output
        pair = find_pair(tmp_path / name)
        assert kind(tensors(pair.talker)["blk.0.attn_q.weight"]) == "q4_0"
        codec = tensors(pair.codec)
        assert kind(codec["a.gen.code.blk.0.attn_q.weight"]) == "q8_0"
        assert kind(codec["a.gen.wav.dac.entry.weight"]) == "f32"
