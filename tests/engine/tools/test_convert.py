"""Conversion of official folders, checked against the checkpoint, llama.cpp and its converter."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from kazeia_engine.errors import InvalidInput, ModelError, ModelFormatError, ModelNotFound
from kazeia_engine.modelfiles import find_pair
from kazeia_engine.tools.checkpoint import Checkpoint
from kazeia_engine.tools.convert import convert
from kazeia_engine.tools.encoding import bf16_bits, encode, from_bf16_bits

MODELS = ("custom-projected", "custom-equal", "design", "base")
Tensors = dict[str, gguf.gguf_reader.ReaderTensor]


def read(path: Path) -> tuple[dict[str, Any], Tensors]:
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return fields, {t.name: t for t in reader.tensors}


def values(tensor: gguf.gguf_reader.ReaderTensor) -> npt.NDArray[np.float32]:
    out: npt.NDArray[np.float32] = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return out


def kind(tensor: gguf.gguf_reader.ReaderTensor) -> str:
    return str(tensor.tensor_type.name.lower())


def edit_safetensors(path: Path, change: Callable[[dict[str, Any], bytearray], None]) -> None:
    """Lets `change` edit the header and the data of a safetensors file in place."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), bytearray(raw[8 + length :])
    change(header, data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def edit_json(path: Path, *keys: str, value: Any = None, delete: bool = False) -> None:
    """Sets or deletes a nested key of a JSON file."""
    whole = json.loads(path.read_text("utf-8"))
    inner = whole
    for key in keys[:-1]:
        inner = inner[key]
    if delete:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    path.write_text(json.dumps(whole), "utf-8")


@pytest.fixture
def folder(golden_dir: Path, tmp_path: Path) -> Path:
    """A copy of an official folder, to be damaged."""
    target = tmp_path / "source"
    shutil.copytree(golden_dir / "custom-projected", target, ignore=shutil.ignore_patterns("cases"))
    return target


class TestAgainstTheCheckpoint:
    def test_f32_values_are_those_of_the_checkpoint(
        self, golden_dir: Path, golden_models: dict[str, Path]
    ) -> None:
        source = golden_dir / "custom-projected"
        main, codec = Checkpoint(source), Checkpoint(source / "speech_tokenizer")
        pair = find_pair(golden_models["custom-projected"])
        _, talker = read(pair.talker)
        _, mmproj = read(pair.codec)
        assert {kind(t) for t in (*talker.values(), *mmproj.values())} == {"f32"}
        plain = {
            "blk.1.attn_q.weight": "talker.model.layers.1.self_attn.q_proj.weight",
            "blk.0.ffn_down.weight": "talker.model.layers.0.mlp.down_proj.weight",
            "output.weight": "talker.codec_head.weight",
            "output_norm.weight": "talker.model.norm.weight",
        }
        for ours, theirs in plain.items():
            np.testing.assert_array_equal(values(talker[ours]), main.array(theirs))
        np.testing.assert_array_equal(
            values(mmproj["a.gen.code.embd.weight"])[3],
            main.array("talker.code_predictor.model.codec_embedding.3.weight"),
        )
        np.testing.assert_array_equal(
            values(mmproj["a.gen.code.head.weight"])[14],
            main.array("talker.code_predictor.lm_head.14.weight"),
        )
        np.testing.assert_array_equal(
            values(mmproj["a.gen.wav.dac.blk.2.res.1.conv1.weight"]),
            codec.array("decoder.decoder.3.block.3.conv1.conv.weight"),
        )
        usage = codec.array("decoder.quantizer.rvq_rest.vq.layers.4._codebook.cluster_usage")
        total = codec.array("decoder.quantizer.rvq_rest.vq.layers.4._codebook.embedding_sum")
        assert usage.min() < 1e-5  # the clamp has something to do
        np.testing.assert_allclose(
            values(mmproj["a.gen.wav.quant.rest.codebook.weight"])[4],
            total / np.maximum(usage, 1e-5)[:, None],
            rtol=1e-6,
        )
        beta = codec.array("decoder.decoder.1.block.0.beta").astype(np.float64)
        np.testing.assert_allclose(
            values(mmproj["a.gen.wav.dac.blk.0.snake.beta"]),
            1 / (np.exp(beta) + 1e-9),
            rtol=1e-6,
        )

    def test_the_folded_text_table_gives_the_official_prompt(
        self, golden_models: dict[str, Path], golden_case: Any
    ) -> None:
        case = golden_case("custom-projected", "instruct_speaker")
        _, talker = read(find_pair(golden_models["custom-projected"]).talker)
        table = values(talker["token_embd.weight"])
        ids = [*case["instruct_ids"], *case["input_ids"][:3]]
        np.testing.assert_allclose(table[ids], case["prompt_embeds"][: len(ids)], atol=2e-6)

    @pytest.mark.parametrize("model", MODELS)
    def test_metadata_carries_the_configuration(
        self, golden_dir: Path, golden_models: dict[str, Path], model: str
    ) -> None:
        config = json.loads((golden_dir / model / "config.json").read_text("utf-8"))
        talker_config = config["talker_config"]
        pair = find_pair(golden_models[model])
        fields, tensors = read(pair.talker)
        codec_fields, _ = read(pair.codec)
        assert fields["general.architecture"] == "qwen3tts"
        assert codec_fields["general.architecture"] == "clip"
        assert fields["kazeia.kind"] == config["tts_model_type"]
        assert fields["kazeia.model_size"] == config["tts_model_size"]
        assert fields["kazeia.codec.eos_id"] == talker_config["codec_eos_token_id"]
        assert fields["kazeia.tts.eos_id"] == config["tts_eos_token_id"]
        speakers = dict(
            zip(
                fields.get("kazeia.speaker.names", []),
                fields.get("kazeia.speaker.ids", []),
                strict=True,
            )
        )
        assert speakers == talker_config["spk_id"]
        if speakers:
            assert fields["kazeia.speaker.dialects"] == ["", "", "beijing_dialect"]
        languages = zip(fields["kazeia.language.names"], fields["kazeia.language.ids"], strict=True)
        assert dict(languages) == talker_config["codec_language_id"]
        text_vocab = talker_config["text_vocab_size"]
        tokens = fields["tokenizer.ggml.tokens"]
        assert len(tokens) == tensors["token_embd.weight"].shape[1]
        assert tokens[text_vocab + talker_config["codec_pad_id"]] == "<|codec_pad|>"
        assert tokens[text_vocab + talker_config["codec_language_id"]["french"]] == (
            "<|codec_language_french|>"
        )
        assert tokens[config["tts_pad_token_id"]] == "<tts_pad>"
        assert codec_fields["kazeia.codec.heads"] == 16
        assert codec_fields["kazeia.codec.sliding_window"] == 72
        assert codec_fields["kazeia.speaker_encoder"] == (config["tts_model_type"] == "base")


class TestTypes:
    @pytest.mark.parametrize(
        ("type", "matrix", "table", "cp", "down"),
        [
            ("f16", "f16", "f16", "f16", "f32"),
            ("bf16", "bf16", "bf16", "bf16", "bf16"),
            ("q8_0", "q8_0", "q8_0", "q8_0", "q8_0"),
            ("q5_0", "q5_0", "q8_0", "q8_0", "q8_0"),
            ("q4_0", "q4_0", "q8_0", "q8_0", "q8_0"),
            ("q4_1", "q4_1", "q8_0", "q8_0", "q8_0"),
        ],
    )
    def test_each_part_takes_its_type(
        self,
        golden_dir: Path,
        tmp_path: Path,
        type: str,
        matrix: str,
        table: str,
        cp: str,
        down: str,
    ) -> None:
        report = convert(golden_dir / "custom-projected", tmp_path, type=type)
        _, talker = read(report.talker)
        _, codec = read(report.codec)
        assert kind(talker["blk.0.attn_q.weight"]) == matrix
        assert kind(talker["blk.1.ffn_down.weight"]) == matrix
        assert kind(talker["token_embd.weight"]) == table
        assert kind(talker["output.weight"]) == table
        assert kind(talker["blk.0.attn_norm.weight"]) == "f32"
        assert kind(codec["a.gen.code.blk.0.attn_q.weight"]) == cp
        assert kind(codec["a.gen.code.blk.0.ffn_down.weight"]) == down
        assert kind(codec["a.gen.code.blk.0.ln1.weight"]) == "f32"
        assert kind(codec["a.gen.wav.tfm.blk.0.attn_q.weight"]) == "f16"
        assert kind(codec["a.gen.wav.dac.entry.weight"]) == "f16"
        assert kind(codec["a.gen.wav.dac.blk.0.conv.weight"]) == "f32"
        assert kind(codec["a.gen.wav.quant.rest.codebook.weight"]) == "f32"
        bits = {"f16": 1e-3, "bf16": 8e-3, "q8_0": 1e-2, "q5_0": 5e-2, "q4_0": 1e-1, "q4_1": 1e-1}
        exact = Checkpoint(golden_dir / "custom-projected").array(
            "talker.model.layers.0.self_attn.q_proj.weight"
        )
        got = values(talker["blk.0.attn_q.weight"])
        error = np.sqrt(np.mean((got - exact) ** 2)) / exact.std()
        assert error < bits[type]

    def test_parts_are_chosen_apart(self, golden_dir: Path, tmp_path: Path) -> None:
        report = convert(
            golden_dir / "custom-equal", tmp_path, type="q4_0", cp_type="q5_0", decoder_type="f32"
        )
        _, codec = read(report.codec)
        assert kind(codec["a.gen.code.blk.0.attn_q.weight"]) == "q5_0"
        assert kind(codec["a.gen.wav.dac.entry.weight"]) == "f32"

    @pytest.mark.parametrize("type", ["q4_k", "q5_k", "q6_k"])
    def test_rows_that_do_not_divide_are_reported(
        self, golden_dir: Path, tmp_path: Path, type: str
    ) -> None:
        report = convert(golden_dir / "custom-projected", tmp_path, type=type)
        _, talker = read(report.talker)
        assert kind(talker["blk.0.attn_q.weight"]) == "q8_0"
        assert any("rows of 96" in note and "q8_0" in note for note in report.notes)

    @pytest.mark.parametrize("type", ["q4_k", "q5_k", "q6_k", "q8_0", "q4_0"])
    def test_encoding_is_that_of_ggml(self, type: str) -> None:
        rows = np.random.default_rng(1).standard_normal((6, 512)).astype(np.float32)
        back = gguf.quants.dequantize(encode(rows, type), gguf.GGMLQuantizationType[type.upper()])
        limit = {"q4_k": 0.08, "q5_k": 0.05, "q6_k": 0.03, "q8_0": 0.01, "q4_0": 0.11}[type]
        assert np.sqrt(np.mean((back - rows) ** 2)) < limit

    def test_bf16_rounds_to_the_nearest_even(self) -> None:
        x = np.array([1.0, 1.00390625, 1.01171875, -3.14159, 1e-30, 0.0], dtype=np.float32)
        got = from_bf16_bits(bf16_bits(x))
        assert got[0] == 1.0
        assert got[1] == 1.0  # a tie: to the even neighbour below
        assert got[2] == np.float32(1.015625)  # a tie: to the even neighbour above
        np.testing.assert_allclose(got, x, rtol=2**-8)

    @pytest.mark.parametrize(
        ("options", "param"),
        [
            ({"type": "q3_z"}, "type"),
            ({"cp_type": "int8"}, "cp_type"),
            ({"decoder_type": "q4_0"}, "decoder_type"),
        ],
    )
    def test_unknown_types_are_refused(
        self, golden_dir: Path, tmp_path: Path, options: dict[str, Any], param: str
    ) -> None:
        with pytest.raises(InvalidInput, match=param) as caught:
            convert(golden_dir / "base", tmp_path / "out", **options)
        assert caught.value.param == param
        assert not (tmp_path / "out").exists()


class TestAgainstLlamaCpp:
    def test_equal_to_the_pair_of_its_converter(self, golden_models: dict[str, Path]) -> None:
        ours, theirs = find_pair(golden_models["base"]), find_pair(golden_models["llamacpp-base"])
        for a, b in ((ours.talker, theirs.talker), (ours.codec, theirs.codec)):
            fields, tensors = read(a)
            their_fields, their_tensors = read(b)
            assert set(tensors) == set(their_tensors)
            for name, tensor in tensors.items():
                other = their_tensors[name]
                assert tuple(tensor.shape) == tuple(other.shape), name
                tolerance = 1e-6 if kind(other) == "f32" else 2e-3  # it keeps kernels in f16
                np.testing.assert_allclose(
                    values(tensor), values(other), atol=tolerance, err_msg=name
                )
            free = ("general.", "GGUF.", "clip.audio.embedding", "clip.audio.feed_forward")
            for key, value in their_fields.items():
                if not key.startswith(free):
                    assert fields[key] == value, key

    @pytest.mark.parametrize("type", ["f32", "q8_0", "q4_k"])
    def test_its_loader_takes_the_pair(self, golden_dir: Path, tmp_path: Path, type: str) -> None:
        source = tmp_path / "source"
        widen_codec_vocabulary(golden_dir / "custom-projected", source)
        report = convert(source, tmp_path / "out", type=type)
        run_llama_cpp(report.talker, report.codec)

    @pytest.mark.parametrize("type", ["f32", "f16"])
    def test_its_kernels_compute_the_official_codes_and_audio(
        self, golden_dir: Path, golden_case: Any, tmp_path: Path, type: str
    ) -> None:
        report = convert(golden_dir / "custom-projected", tmp_path, type=type)
        run = golden_case("custom-projected", "whole_speaker_french")
        window = golden_case("custom-projected", "decoder_window")
        frames = 72  # its decoder takes exactly one window of frames
        np.savez(
            tmp_path / "in.npz",
            hidden=run["talker_hidden"],
            code0=run["codes"][:, 0],
            codes=window["codes"][:frames],
        )
        run_llama_cpp(None, report.codec, tmp_path)
        with np.load(tmp_path / "out.npz") as out:
            np.testing.assert_array_equal(out["codes"], run["codes"])
            difference = out["pcm"] - window["pcm"][: frames * 1920, 0]
        # Its convolutions go through f16 and its GELU is the tanh approximation.
        assert np.sqrt(np.mean(difference**2)) < 0.01


def widen_codec_vocabulary(source: Path, target: Path) -> None:
    """A copy of an official folder with the 3072 codec ids llama.cpp's loader insists on."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("cases"))
    edit_json(target / "config.json", "talker_config", "vocab_size", value=3072)

    def change(header: dict[str, Any], data: bytearray) -> None:
        for name in ("talker.model.codec_embedding.weight", "talker.codec_head.weight"):
            begin, end = header[name]["data_offsets"]
            width = header[name]["shape"][1]
            rows = np.frombuffer(bytes(data[begin:end]), dtype=np.uint16).reshape(-1, width)
            wide = np.resize(rows, (3072, width)).tobytes()
            header[name]["shape"][0] = 3072
            header[name]["data_offsets"] = [len(data), len(data) + len(wide)]
            data += wide

    edit_safetensors(target / "model.safetensors", change)


_DRIVER = """
import ctypes, sys
import llama_cpp, numpy as np
from llama_cpp import mtmd_cpp as mtmd
talker, codec, work = sys.argv[1:4]
model = None
if talker:
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(talker.encode(), params)
    assert model, "the talker file did not load"
params = mtmd.mtmd_context_params_default()
params.use_gpu, params.n_threads = False, 1
ctx = mtmd.mtmd_init_from_file(codec.encode(), model, params)
assert ctx, "the codec file did not load"
assert mtmd.mtmd_gen_audio_get_info(ctx).sample_rate == 24000
if work:
    given = np.load(work + "/in.npz")
    floats, ints = ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.c_int32)
    codes = []
    for hidden, code0 in zip(given["hidden"], given["code0"]):
        hidden = np.ascontiguousarray(hidden)
        inp, out = mtmd.mtmd_gen_inp_default(ctx), mtmd.mtmd_gen_out()
        inp.type, inp.top_k, inp.seed, inp.code0 = 0, 1, 1, int(code0)
        inp.embd = hidden.ctypes.data_as(floats)
        assert mtmd.mtmd_gen_audio_process(ctx, ctypes.byref(inp), ctypes.byref(out)) == 0
        codes.append(np.ctypeslib.as_array(out.codes, (out.n_codes,)).copy())
    window = np.ascontiguousarray(given["codes"], dtype=np.int32)
    inp, out = mtmd.mtmd_gen_inp_default(ctx), mtmd.mtmd_gen_out()
    inp.type, inp.n_codes, inp.codes = 1, window.size, window.ctypes.data_as(ints)
    assert mtmd.mtmd_gen_audio_process(ctx, ctypes.byref(inp), ctypes.byref(out)) == 0
    pcm = np.ctypeslib.as_array(out.audio, (out.n_samples,)).copy()
    np.savez(work + "/out.npz", codes=np.stack(codes), pcm=pcm)
mtmd.mtmd_free(ctx)
"""


def run_llama_cpp(talker: Path | None, codec: Path, work: Path | None = None) -> None:
    """Loads a pair with llama.cpp in a process of its own: a failed assertion there aborts."""
    command = [sys.executable, "-c", _DRIVER, str(talker or ""), str(codec), str(work or "")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


class TestSource:
    def test_shards_give_the_same_files(self, folder: Path, tmp_path: Path) -> None:
        whole = convert(folder, tmp_path / "whole")
        split_checkpoint(folder)
        parts = convert(folder, tmp_path / "parts")
        assert whole.talker.read_bytes() == parts.talker.read_bytes()
        assert whole.codec.read_bytes() == parts.codec.read_bytes()

    def test_progress_counts_up_to_the_whole(self, golden_dir: Path, tmp_path: Path) -> None:
        calls: list[tuple[str, int, int]] = []
        convert(golden_dir / "base", tmp_path, progress=lambda *call: calls.append(call))
        ends = [i for i, (_, done, total) in enumerate(calls) if done == total]
        assert len(ends) == 2  # one file, then the other
        assert ends[1] == len(calls) - 1
        assert all(a[1] < b[1] for a, b in itertools.pairwise(calls) if a[2] == b[2])

    def test_nothing_is_left_behind_when_it_fails(self, folder: Path, tmp_path: Path) -> None:
        def poison(header: dict[str, Any], data: bytearray) -> None:
            begin, _ = header["talker.model.layers.1.mlp.up_proj.weight"]["data_offsets"]
            data[begin : begin + 2] = b"\xc0\x7f"  # NaN

        edit_safetensors(folder / "model.safetensors", poison)
        with pytest.raises(ModelFormatError, match=r"layers\.1\.mlp\.up_proj.*NaN"):
            convert(folder, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        "name",
        [
            "config.json",
            "model.safetensors",
            "vocab.json",
            "merges.txt",
            "tokenizer_config.json",
            "speech_tokenizer/config.json",
            "speech_tokenizer/model.safetensors",
        ],
    )
    def test_a_missing_file_is_named(self, folder: Path, tmp_path: Path, name: str) -> None:
        (folder / name).unlink()
        with pytest.raises(ModelNotFound, match=name):
            convert(folder, tmp_path / "out")

    @pytest.mark.parametrize(
        "name", ["config.json", "vocab.json", "model.safetensors", "speech_tokenizer/config.json"]
    )
    @pytest.mark.parametrize("content", [b"", b"\xff\xfe garbage", b"[1, 2]", b"[" * 100_000])
    def test_a_damaged_file_is_named(
        self, folder: Path, tmp_path: Path, name: str, content: bytes
    ) -> None:
        (folder / name).write_bytes(content)
        with pytest.raises(ModelFormatError, match=name):
            convert(folder, tmp_path / "out")

    @pytest.mark.parametrize("name", ["model.safetensors", "speech_tokenizer/model.safetensors"])
    @pytest.mark.parametrize("keep", [4, 100, 0.5, 0.999])
    def test_a_truncated_file_is_named(
        self, folder: Path, tmp_path: Path, name: str, keep: float
    ) -> None:
        path = folder / name
        raw = path.read_bytes()
        path.write_bytes(raw[: int(keep if keep > 1 else keep * len(raw))])
        with pytest.raises(ModelFormatError, match="truncated"):
            convert(folder, tmp_path / "out")

    @pytest.mark.parametrize(
        "name",
        [
            "talker.model.layers.0.self_attn.k_norm.weight",
            "talker.text_projection.linear_fc2.bias",
            "talker.code_predictor.small_to_mtp_projection.weight",
            "talker.code_predictor.lm_head.7.weight",
        ],
    )
    def test_a_missing_tensor_is_named(self, folder: Path, tmp_path: Path, name: str) -> None:
        edit_safetensors(folder / "model.safetensors", lambda header, _: header.pop(name))
        with pytest.raises(ModelFormatError, match=name):
            convert(folder, tmp_path / "out")

    def test_a_wrong_shape_is_named(self, folder: Path, tmp_path: Path) -> None:
        edit_json(folder / "config.json", "talker_config", "intermediate_size", value=160)
        with pytest.raises(ModelFormatError, match=r"gate_proj.*\[96, 96\].*\[160, 96\]"):
            convert(folder, tmp_path / "out")

    @pytest.mark.parametrize(
        ("keys", "value", "named"),
        [
            (("tts_model_type",), "singing", "tts_model_type"),
            (("talker_config", "hidden_size"), "wide", "hidden_size"),
            (("talker_config", "hidden_size"), -3, "hidden_size"),
            (("talker_config", "codec_bos_id"), 5000, "codec_bos_id"),
            (("talker_config", "spk_id"), {"x": 99999}, "spk_id"),
            (("talker_config", "spk_is_dialect"), {"ryan": "martian"}, "martian"),
            (("talker_config", "num_code_groups"), 8, "num_code_groups"),
            (("talker_config", "hidden_act"), "relu", "hidden_act"),
            (("tts_eos_token_id",), 1 << 40, "tts_eos_token_id"),
        ],
    )
    def test_a_wrong_key_is_named(
        self, folder: Path, tmp_path: Path, keys: tuple[str, ...], value: Any, named: str
    ) -> None:
        edit_json(folder / "config.json", *keys, value=value)
        with pytest.raises(ModelFormatError, match=named):
            convert(folder, tmp_path / "out")

    @pytest.mark.parametrize(
        "keys",
        [
            ("talker_config",),
            ("talker_config", "codec_think_id"),
            ("talker_config", "code_predictor_config", "vocab_size"),
        ],
    )
    def test_a_missing_key_is_named(
        self, folder: Path, tmp_path: Path, keys: tuple[str, ...]
    ) -> None:
        edit_json(folder / "config.json", *keys, delete=True)
        with pytest.raises(ModelFormatError, match=keys[-1]):
            convert(folder, tmp_path / "out")

    def test_an_index_cannot_reach_outside_the_folder(self, folder: Path, tmp_path: Path) -> None:
        (folder / "model.safetensors").unlink()
        index = {"weight_map": {"x": "../../secret.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ModelFormatError, match="plain file name"):
            convert(folder, tmp_path / "out")

    @pytest.mark.parametrize("source", ["nowhere", "file"])
    def test_a_source_that_is_no_folder(self, tmp_path: Path, source: str) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(ModelNotFound, match=source):
            convert(tmp_path / source, tmp_path / "out")

    def test_an_output_that_is_a_file(self, golden_dir: Path, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("x")
        with pytest.raises(InvalidInput, match="not a folder"):
            convert(golden_dir / "base", tmp_path / "out")

    def test_errors_are_of_our_own_tree(self) -> None:
        assert issubclass(ModelNotFound, (ModelError, FileNotFoundError))
        assert issubclass(ModelFormatError, ModelError)


def split_checkpoint(folder: Path) -> None:
    """Turns model.safetensors into two shards with an index."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    header.pop("__metadata__", None)
    names = sorted(header)
    weight_map = {}
    for i, part in enumerate((names[::2], names[1::2])):
        shard = f"model-0000{i + 1}-of-00002.safetensors"
        body, entries = b"", {}
        for name in part:
            begin, end = header[name]["data_offsets"]
            entries[name] = {
                **header[name],
                "data_offsets": [len(body), len(body) + end - begin],
            }
            body += data[begin:end]
            weight_map[name] = shard
        text = json.dumps(entries).encode()
        (folder / shard).write_bytes(len(text).to_bytes(8, "little") + text + body)
    path.unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
