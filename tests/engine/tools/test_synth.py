"""Random models: true shapes, a usable vocabulary, the same seed the same files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kazeia_engine.errors import InvalidInput
from kazeia_engine.modelfiles import find_pair, read_header
from kazeia_engine.tools.gguf_layout import codec_tensors, talker_tensors
from kazeia_engine.tools.gguf_writing import WrittenPair
from kazeia_engine.tools.synth import SIZES, shape_of, synth, vocabulary_of

_DRIVER = """
import sys
import llama_cpp
from llama_cpp import mtmd_cpp as mtmd
talker, codec = (name.encode() for name in sys.argv[1:3])
params = llama_cpp.llama_model_default_params()
params.vocab_only = True
model = llama_cpp.llama_model_load_from_file(talker, params)
assert model, "vocab only"
vocab = llama_cpp.llama_model_get_vocab(model)
out = (llama_cpp.llama_token * 64)()
def ids(text, special):
    n = llama_cpp.llama_tokenize(vocab, text, len(text), out, 64, False, special)
    assert n >= 0
    return out[:n]
print(*ids(b"<|im_start|>assistant\\n", True))
print(*ids("hello \\u00e9\\U0001f600".encode(), False))
llama_cpp.llama_model_free(model)
params.vocab_only = False
model = llama_cpp.llama_model_load_from_file(talker, params)
assert model, "whole"
context = mtmd.mtmd_context_params_default()
context.use_gpu, context.n_threads = False, 1
assert mtmd.mtmd_init_from_file(codec, model, context), "codec"
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> WrittenPair:
    return synth(tmp_path_factory.mktemp("tiny"), size="tiny", type="q8_0", seed=3)


def tensors(path: Path) -> dict[str, Any]:
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def values(tensor: Any) -> Any:
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def test_the_pair_is_found(tiny: WrittenPair) -> None:
    pair = find_pair(tiny.talker.parent)
    assert (pair.talker, pair.codec) == (tiny.talker, tiny.codec)
    assert tiny.talker.stat().st_size == tiny.talker_bytes
    assert tiny.codec.stat().st_size == tiny.codec_bytes


def test_the_same_seed_gives_the_same_files(tiny: WrittenPair, tmp_path: Path) -> None:
    again = synth(tmp_path / "again", size="tiny", type="q8_0", seed=3)
    other = synth(tmp_path / "other", size="tiny", type="q8_0", seed=4)
    assert again.talker.read_bytes() == tiny.talker.read_bytes()
    assert again.codec.read_bytes() == tiny.codec.read_bytes()
    assert other.talker.read_bytes() != tiny.talker.read_bytes()


def test_llama_cpp_loads_it_and_its_vocabulary(tiny: WrittenPair) -> None:
    command = [sys.executable, "-c", _DRIVER, str(tiny.talker), str(tiny.codec)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    role, text = ([int(i) for i in line.split()] for line in done.stdout.splitlines())
    tokens = gguf.GGUFReader(tiny.talker).fields["tokenizer.ggml.tokens"].contents()
    assert [tokens[i] for i in role] == ["<|im_start|>", "assistant", "\u010a"]
    assert tokens[text[0]] == "hello"
    assert len(text) == 1 + 1 + 2 + 4  # hello, then bytes: space, two of \xe9, four of the emoji


def test_end_of_speech_is_never_likely(tiny: WrittenPair) -> None:
    head = values(tensors(tiny.talker)["output.weight"])
    eos = read_header(tiny.talker).values["kazeia.codec.eos_id"]
    assert not head[eos].any()
    hidden = np.random.default_rng(0).standard_normal((200, head.shape[1]))
    logits = hidden @ head.T
    better = (logits[:, :2048] > logits[:, eos, None]).sum(axis=1)
    assert better.min() > 200  # far outside the 50 best candidates


@pytest.mark.parametrize("type", ["f32", "f16", "bf16", "q4_0", "q5_1", "q4_k"])
def test_every_type_holds_sensible_values(tmp_path: Path, type: str) -> None:
    report = synth(tmp_path, size="tiny", type=type)
    for path in (report.talker, report.codec):
        for name, tensor in tensors(path).items():
            x = values(tensor)
            assert np.isfinite(x).all(), name
            if not name.startswith(("a.blk", "a.conv", "a.asp", "mm.a.")):
                assert x.std() > 1e-3 or x.size < 16, name
    x = values(tensors(report.talker)["blk.0.ffn_gate.weight"])
    assert x.std() == pytest.approx(1 / np.sqrt(96), rel=0.05)
    assert abs(np.corrcoef(x[::2].ravel(), x[1::2].ravel())[0, 1]) < 0.1


@pytest.mark.parametrize(("size", "width", "ffn"), [("0.6b", 1024, 3072), ("1.7b", 2048, 6144)])
def test_the_released_shapes(size: str, width: int, ffn: int) -> None:
    shape = shape_of(size)
    talker = {spec.name: spec.shape for spec in talker_tensors(shape)}
    codec = {spec.name: spec.shape for spec in codec_tensors(shape)}
    assert talker["token_embd.weight"] == (151936 + 3072, width)
    assert talker["output.weight"] == (3072, width)
    assert talker["blk.27.attn_q.weight"] == (2048, width)
    assert talker["blk.27.attn_k.weight"] == (1024, width)
    assert talker["blk.0.ffn_down.weight"] == (width, ffn)
    assert "blk.28.attn_q.weight" not in talker
    assert codec["a.gen.code.embd.weight"] == (15, 2048, width)
    assert codec["a.gen.code.blk.4.ffn_up.weight"] == (3072, 1024)
    assert ("a.gen.code.proj_in.weight" in codec) == (width != 1024)
    assert codec["a.gen.wav.quant.rest.codebook.weight"] == (15, 2048, 256)
    assert codec["a.gen.wav.tfm.blk.7.attn_q.weight"] == (1024, 512)
    assert codec["a.gen.wav.dac.blk.0.conv.weight"] == (1536, 768, 16)
    assert codec["a.gen.wav.dac.post_conv.weight"] == (1, 96, 7)


def test_the_released_token_ids() -> None:
    vocab = vocabulary_of("0.6b")
    tokens = vocab.tokens
    assert tokens[151644] == "<|im_start|>"
    assert tokens[151645] == "<|im_end|>"
    assert tokens[151671:151674] == ["<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"]
    assert tokens[151675] == "<|audio_pad|>"
    assert tokens[77091] == "assistant"
    assert tokens[198] == "\u010a"
    assert len(set(tokens)) == len(tokens) == len(vocab.types) == 151936
    known = set(tokens)
    for merge in vocab.merges:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= known


@pytest.mark.slow
def test_llama_cpp_loads_the_released_shapes(tmp_path: Path) -> None:
    report = synth(tmp_path, size="0.6b", type="q4_k")
    command = [sys.executable, "-c", _DRIVER, str(report.talker), str(report.codec)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[0] == "151644 77091 198"


@pytest.mark.parametrize(
    ("options", "param"),
    [({"size": "7b"}, "size"), ({"type": "q9"}, "type"), ({"seed": -1}, "seed")],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        synth(tmp_path / "out", **{"size": "tiny", **options})
    assert caught.value.param == param
    assert not (tmp_path / "out").exists()


def test_the_sizes_are_known() -> None:
    assert SIZES == ("0.6b", "1.7b", "tiny")


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """A limit of the file size fails a write as a full disk does."""
    script = f"""
import resource, signal
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))
from kazeia_engine.tools.synth import synth
try:
    synth(Path({str(tmp_path / "out")!r}), size="tiny", type="f32")
except OSError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    expected = f"cannot write {tmp_path}/out/synth-tiny-talker-F32.gguf: File too large"
    assert expected in done.stdout, done.stderr
    assert not (tmp_path / "out").exists()
