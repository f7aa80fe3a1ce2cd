"""Makes the golden data: tiny official folders and what the official package computes on them.

Run it in an environment with torch, transformers and qwen-tts (see README.md); it rewrites
tests/golden/data.  Every run on the same versions gives the same files.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import transformers  # looks for torchaudio, so it comes before the stand-in

# Only the 25 Hz tokenizer, which is not used here, needs torchaudio.
if importlib.util.find_spec("torchaudio") is None:
    for _name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
        sys.modules[_name] = types.ModuleType(_name)

from qwen_tts import Qwen3TTSModel
from sampler_vectors import write_sampler_vectors
from tiny_model import CODE_GROUPS, CODEBOOK, CODEC_IDS, TinyModel, build_folder

HERE = Path(__file__).resolve().parent
MIN_MARGIN = 1e-3  # least gap between the best and the second logit of any greedy choice

SMALL_DECODER = {
    "latent": 16,
    "dec_hidden": 16,
    "dec_head_dim": 2,
    "dec_dim": 16,
    "codebook_dim": 16,
}
# Talker wider than the code predictor: there is a projection between them.
PROJECTED = TinyModel("custom-projected", "custom_voice", "1b7", seed=12, hidden=96, cp_hidden=64)
# Equal widths, three query heads to a key head.
EQUAL = TinyModel(
    "custom-equal",
    "custom_voice",
    "0b6",
    seed=25,
    hidden=64,
    cp_hidden=64,
    heads=6,
    cp_heads=2,
    cp_kv_heads=1,
    **SMALL_DECODER,
)
DESIGN = TinyModel(
    "design",
    "voice_design",
    "1b7",
    seed=38,
    hidden=64,
    cp_hidden=32,
    layers=1,
    cp_layers=1,
    cp_ffn=64,
    **SMALL_DECODER,
)
BASE = TinyModel(
    "base",
    "base",
    "0b6",
    seed=41,
    hidden=32,
    cp_hidden=32,
    cp_layers=1,
    heads=2,
    kv_heads=1,
    cp_heads=2,
    cp_kv_heads=1,
    ffn=64,
    cp_ffn=64,
    **SMALL_DECODER,
)

SHORT = "Bonjour the voix."
LONG = "Bonjour, the voice of the river and the singing of the wind, quietly."


@dataclass(frozen=True)
class Case:
    """One greedy run."""

    name: str
    text: str
    frames: int
    speaker: str | None = None
    language: str = "auto"
    instruct: str | None = None
    whole: bool = True
    repetition_penalty: float = 1.05
    eos_at: int | None = None  # the run has to end by itself after this many frames


CASES: dict[str, tuple[Case, ...]] = {
    PROJECTED.name: (
        Case("whole_speaker_french", SHORT, 16, "vivian", "french"),
        Case("whole_no_speaker_auto", SHORT, 8),
        Case("whole_speaker_auto", "Voix 7.", 8, "ryan"),
        Case("stream_text_longer", LONG, 12, "vivian", "english", whole=False),
        Case("stream_text_shorter", "the voix", 14, "vivian", "english", whole=False),
        Case("dialect_auto", SHORT, 6, "dylan", "auto"),
        Case("dialect_chinese", SHORT, 6, "dylan", "chinese", whole=False),
        Case("dialect_english", SHORT, 6, "dylan", "english"),
        Case("instruct_speaker", SHORT, 8, "ryan", "german", "Sing the text."),
        Case("no_penalty", SHORT, 8, "ryan", "german", repetition_penalty=1.0),
    ),
    EQUAL.name: (
        Case("whole_speaker_english", SHORT, 12, "ryan", "english"),
        Case("stream_no_speaker_auto", LONG, 8, whole=False),
        Case("instruct_ignored", SHORT, 6, "vivian", "french", "Sing the text."),
    ),
    DESIGN.name: (
        Case("instruct_eos", SHORT, 20, None, "english", "A warm voice.", eos_at=7),
        Case("instruct_max_frames", LONG, 10, None, "auto", "A deep voice."),
        Case("no_instruct_stream", "the voix", 10, None, "french", whole=False),
    ),
    BASE.name: (Case("stream_no_speaker", SHORT, 10, None, "english", whole=False),),
}


class Recorder:
    """Collects what passes through the talker and the code predictor of one run."""

    def __init__(self, model: Any) -> None:
        self.prompt: list[np.ndarray] = []
        self.hidden: list[np.ndarray] = []
        self.logits: list[np.ndarray] = []
        self.cp_logits: list[np.ndarray] = []
        talker = model.talker
        self._hooks = [
            talker.register_forward_pre_hook(self._on_talker, with_kwargs=True),
            talker.codec_head.register_forward_hook(self._on_head),
        ]
        for head in talker.code_predictor.lm_head:
            self._hooks.append(head.register_forward_hook(self._on_cp_head))

    def _on_talker(self, _module: Any, _args: Any, kwargs: Any) -> None:
        embeds = kwargs.get("inputs_embeds")
        if embeds is not None and embeds.shape[1] > 1:
            self.prompt.append(embeds[0].numpy().copy())

    def _on_head(self, _module: Any, inputs: Any, output: Any) -> None:
        self.hidden.append(inputs[0][0, -1].numpy().copy())
        self.logits.append(output[0, -1].numpy().copy())

    def _on_cp_head(self, _module: Any, _inputs: Any, output: Any) -> None:
        self.cp_logits.append(output[0, -1].numpy().copy())

    def close(self) -> None:
        """Takes the hooks off again."""
        for hook in self._hooks:
            hook.remove()


def load(folder: Path) -> Any:
    """The official wrapper on a folder, f32, plain attention."""
    tts = Qwen3TTSModel.from_pretrained(
        str(folder), dtype=torch.float32, attn_implementation="eager"
    )
    tts.model.eval()
    tts.model.speech_tokenizer.model.eval()
    return tts


def run_case(tts: Any, case: Case) -> dict[str, np.ndarray]:
    """A greedy run through the official `generate`; arrays as the manifest describes them."""
    model = tts.model
    ids = tts._tokenize_texts([tts._build_assistant_text(case.text)])
    instruct = case.instruct
    if model.tts_model_type == "custom_voice" and model.tts_model_size == "0b6":
        instruct = None  # as generate_custom_voice does for the small model
    instruct_ids = (
        [tts._tokenize_texts([tts._build_instruct_text(instruct)])[0]] if instruct else [None]
    )
    recorder = Recorder(model)
    codes, hidden = model.generate(
        input_ids=ids,
        instruct_ids=instruct_ids,
        languages=[case.language],
        speakers=[case.speaker],
        non_streaming_mode=case.whole,
        max_new_tokens=case.frames + 1,  # the last sampled code gets no frame
        do_sample=False,
        subtalker_dosample=False,
        repetition_penalty=case.repetition_penalty,
    )
    recorder.close()
    n = int(codes[0].shape[0])
    book = model.talker.code_predictor.vocab_size
    out = {
        "input_ids": ids[0][0].numpy().astype(np.int32),
        "prompt_embeds": recorder.prompt[0],
        "talker_hidden": np.stack(recorder.hidden)[:n],
        "talker_logits": np.stack(recorder.logits)[:n],
        "cp_logits": np.stack(recorder.cp_logits).reshape(-1, CODE_GROUPS - 1, book)[:n],
        "codes": codes[0].numpy().astype(np.int32),
        "end_hidden": np.stack(recorder.hidden)[n],
    }
    if instruct_ids[0] is not None:
        out["instruct_ids"] = instruct_ids[0][0].numpy().astype(np.int32)
    if not np.allclose(out["talker_hidden"], hidden[0].numpy()):
        raise AssertionError(f"{case.name}: hooks and generate disagree on the hidden states")
    return out


def greedy_margin(out: dict[str, np.ndarray], case: Case) -> float:
    """Least gap between the chosen and the next candidate over all greedy choices of a run."""
    least = np.inf
    for t, row in enumerate(out["talker_logits"]):
        row = row.astype(np.float64).copy()
        seen = np.unique(out["codes"][:t, 0])
        p = case.repetition_penalty
        row[seen] = np.where(row[seen] > 0, row[seen] / p, row[seen] * p)
        eos = row[CODEC_IDS["codec_eos_token_id"]]
        candidates = row[:CODEBOOK] if t < 2 else np.append(row[:CODEBOOK], eos)
        best = np.sort(candidates)[-2:]
        least = min(least, float(best[1] - best[0]))
    best2 = np.sort(out["cp_logits"], axis=-1)[..., -2:]
    return min(least, float((best2[..., 1] - best2[..., 0]).min()))


def solve_eos_row(runs: list[tuple[Case, dict[str, np.ndarray]]]) -> np.ndarray:
    """A codec-head row that makes end-of-speech win exactly where the cases ask for it."""
    states, targets = [], []
    for case, out in runs:
        hidden = np.concatenate([out["talker_hidden"], out["end_hidden"][None]])
        best = out["talker_logits"][:, :CODEBOOK].max(axis=1)
        for t in range(hidden.shape[0]):
            if case.eos_at is not None and t > case.eos_at:
                break
            states.append(hidden[t])
            wanted = case.eos_at is not None and t == case.eos_at
            targets.append(float(best.max()) + 4.0 if wanted else -4.0)
    a, b = np.stack(states).astype(np.float64), np.array(targets)
    ridge = 1e-2 * np.eye(a.shape[1])
    return np.linalg.solve(a.T @ a + ridge, a.T @ b).astype(np.float32)


def decoder_stages(tts: Any, codes: np.ndarray) -> dict[str, np.ndarray]:
    """Every stage of an undivided pass over codes [T, 16]; each stage is [time, channels]."""
    decoder = tts.model.speech_tokenizer.model.decoder
    stages: dict[str, np.ndarray] = {}

    def keep(name: str, transpose: bool) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            x = getattr(output, "last_hidden_state", output)[0]
            stages[name] = (x.T if transpose else x).numpy().copy()

        return hook

    hooks = [
        decoder.pre_conv.register_forward_pre_hook(
            lambda _m, inputs: stages.__setitem__("quant", inputs[0][0].T.numpy().copy())
        ),
        decoder.pre_conv.register_forward_hook(keep("preconv", True)),
        decoder.pre_transformer.register_forward_hook(keep("pretr", False)),
        decoder.upsample[-1][-1].register_forward_hook(keep("upsample", True)),
        decoder.decoder[0].register_forward_hook(keep("dac.entry", True)),
    ]
    for i in range(4):
        hooks.append(decoder.decoder[i + 1].register_forward_hook(keep(f"dac.{i}", True)))
    with torch.no_grad():
        wav = decoder(torch.from_numpy(codes.astype(np.int64)).T[None])
    stages["pcm"] = wav[0].T.numpy().copy()
    for hook in hooks:
        hook.remove()
    return stages


def write_decoder(
    tts: Any, folder: Path, name: str, frames: int, keep: tuple[str, ...]
) -> dict[str, Any]:
    """A decoder case on random codes; `keep` empty keeps every stage."""
    rng = np.random.default_rng([frames, len(name)])
    codes = rng.integers(0, CODEBOOK, size=(frames, CODE_GROUPS)).astype(np.int32)
    codes[0, :4] = 0  # entries whose cluster was never used
    stages = decoder_stages(tts, codes)
    for stage, x in stages.items():
        print(f"    {stage:10} {x.shape!s:14} std {x.std():.3f} max {np.abs(x).max():.3f}")
    kept = {k: v for k, v in stages.items() if not keep or k in keep}
    np.savez_compressed(folder / f"{name}.npz", codes=codes, **kept)
    return {"name": name, "frames": frames, "stages": sorted(kept)}


def check_pretokenizer(tts: Any, folder: Path, texts: list[str]) -> None:
    """The processor has to split the texts as the native Qwen pattern does."""
    plain = transformers.Qwen2TokenizerFast.from_pretrained(str(folder))
    for text in texts:
        ours = plain(tts._build_assistant_text(text))["input_ids"]
        if ours != tts._tokenize_texts([tts._build_assistant_text(text)])[0][0].tolist():
            raise AssertionError(f"the processor splits {text!r} unlike the native pattern")


def build_model(m: TinyModel, root: Path) -> Any:
    """The folder of `m`, with its end-of-speech row solved where a case needs one."""
    folder = root / m.name
    build_folder(m, folder)
    tts = load(folder)
    if any(c.eos_at is not None for c in CASES[m.name]):
        runs = [(c, run_case(tts, c)) for c in CASES[m.name]]
        build_folder(m, folder, solve_eos_row(runs))
        tts = load(folder)
    return tts


def make_model(m: TinyModel, root: Path) -> dict[str, Any]:
    """Folder, runs and decoder cases of one model; returns its part of the manifest."""
    print(m.name)
    tts = build_model(m, root)
    check_pretokenizer(tts, root / m.name, [c.text for c in CASES[m.name]])
    out_dir = root / m.name / "cases"
    out_dir.mkdir()
    entries = []
    for case in CASES[m.name]:
        out = run_case(tts, case)
        n = out["codes"].shape[0]
        margin = greedy_margin(out, case)
        ended = "max_frames" if n == case.frames else "eos"
        print(f"  {case.name}: {n} frames, {ended}, margin {margin:.4f}")
        if margin < MIN_MARGIN:
            raise AssertionError(f"{case.name}: near-tie {margin}; choose another seed")
        if (case.eos_at if case.eos_at is not None else case.frames) != n:
            raise AssertionError(f"{case.name}: {n} frames, expected {case.eos_at or case.frames}")
        del out["end_hidden"]
        if case is CASES[m.name][0]:
            out["pcm"] = decoder_stages(tts, out["codes"])["pcm"][:, 0]
        np.savez_compressed(out_dir / f"{case.name}.npz", **out)
        entries.append(
            {
                "name": case.name,
                "text": case.text,
                "speaker": case.speaker,
                "language": case.language,
                "instruct": case.instruct,
                "non_streaming_mode": case.whole,
                "repetition_penalty": case.repetition_penalty,
                "max_frames": case.frames,
                "frames": n,
                "ended": ended,
                "min_margin": round(margin, 5),
            }
        )
    decoders = []
    if m in (PROJECTED, EQUAL):
        decoders.append(write_decoder(tts, out_dir, "decoder_stages", 6, ()))
    if m is PROJECTED:
        kept = ("quant", "preconv", "pretr", "upsample", "pcm")
        decoders.append(write_decoder(tts, out_dir, "decoder_window", 80, kept))
    return {"kind": m.kind, "size": m.size, "cases": entries, "decoder_cases": decoders}


def convert_with_llama_cpp(source: Path, folder: Path, out: Path) -> None:
    """The pair that llama.cpp's own converter makes of an official Base folder.

    The converter recognises a pre-tokenizer by hashing token ids, which a vocabulary of our own
    cannot match; so the answer it would give for the released models is put in.
    """
    out.mkdir()
    script = (
        "import sys, runpy\n"
        f"sys.path[:0] = [{str(source)!r}, {str(source / 'gguf-py')!r}]\n"
        "from conversion import base\n"
        "base.TextModel.get_vocab_base_pre = lambda self, tokenizer: 'qwen2'\n"
        "sys.argv = ['convert_hf_to_gguf.py', *sys.argv[1:]]\n"
        f"runpy.run_path({str(source / 'convert_hf_to_gguf.py')!r}, run_name='__main__')\n"
    )
    for extra, name in (([], "talker"), (["--mmproj"], "mmproj")):
        command = [sys.executable, "-c", script, str(folder), "--outtype", "f32", *extra]
        command += ["--outfile", str(out / f"tiny-{name}-f32.gguf")]
        subprocess.run(command, check=True)


def main() -> None:
    """Rewrites the data folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "data")
    parser.add_argument(
        "--llama-cpp",
        type=Path,
        required=True,
        help="llama.cpp sources (vendor/llama.cpp of llama-cpp-python's source distribution)",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    manifest: dict[str, Any] = {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "models": {m.name: make_model(m, args.out) for m in (PROJECTED, EQUAL, DESIGN, BASE)},
    }
    convert_with_llama_cpp(
        args.llama_cpp.resolve(), args.out / BASE.name, args.out / "llamacpp-base"
    )
    manifest["pairs"] = {"llamacpp-base": {"made_from": BASE.name}}
    write_sampler_vectors(load(args.out / EQUAL.name).model.talker, args.out / "sampler.npz")
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
