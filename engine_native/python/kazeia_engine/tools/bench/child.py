"""One measured run of a model in a process of its own, for `kazeia bench --compare`.

    python child.py kazeia|llama.cpp TALKER CODEC --text TEXT --frames N --threads N

Prints one line of JSON: load_s, first_audio_s, work_s, audio_s, frames, peak_rss_mb; or error.
Run by its path: importing the package first would set how OpenMP threads wait, also for llama.cpp.
"""

from __future__ import annotations

import argparse
import ctypes as C
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["main"]

_WARMING = 4  # frames
_BATCH = 512  # prompt positions a step
_SEED = 1
_LOG_ERROR = 4  # GGML_LOG_LEVEL_ERROR


def _kazeia(a: argparse.Namespace) -> dict[str, Any]:
    from kazeia_engine.model import Model

    start = time.perf_counter()
    with Model.load(a.talker, threads=a.threads) as model:
        load_s = time.perf_counter() - start
        # llama.cpp's prompt: the language, and no preset speaker.
        options: dict[str, Any] = {"language": "english", "seed": _SEED, "ignore_eos": True}
        model.synthesize(a.text, **options, max_frames=_WARMING)
        start = time.perf_counter()
        result = model.synthesize(a.text, **options, max_frames=a.frames)
        work_s = time.perf_counter() - start
        return {
            "load_s": load_s,
            "first_audio_s": result.ttfb_s,
            "work_s": work_s,
            "audio_s": len(result.pcm) / result.sample_rate,
            "frames": len(result.codes),
        }


class _Llama:
    """llama.cpp's generation helper on a pair of files."""

    def __init__(self, a: argparse.Namespace) -> None:
        from llama_cpp import llama_cpp as api
        from llama_cpp import mtmd_cpp as mtmd

        self._api, self._mtmd = api, mtmd
        self._errors: list[str] = []
        self._log = api.llama_log_callback(self._receive)
        for set_log in (api.llama_log_set, mtmd.mtmd_log_set, mtmd.mtmd_helper_log_set):
            set_log(self._log, None)
        api.llama_backend_init()
        model = api.llama_model_default_params()
        model.use_extra_bufts = model.use_extra_bufts and not a.no_repack
        self._model = self._need(
            api.llama_model_load_from_file(os.fsencode(a.talker), model), "loading the talker"
        )
        context = api.llama_context_default_params()
        context.n_ctx = max(512, a.frames + len(a.text.encode()) + 64)
        context.n_threads = context.n_threads_batch = a.threads
        context.embeddings = True
        self._context = self._need(
            api.llama_init_from_model(self._model, context), "making a context"
        )
        parameters = mtmd.mtmd_context_params_default()
        parameters.use_gpu = False
        parameters.n_threads = a.threads
        self._codec = self._need(
            mtmd.mtmd_init_from_file(os.fsencode(a.codec), self._model, parameters),
            "loading the codec",
        )
        self._helper = self._need(
            mtmd.mtmd_helper_gen_audio_init(self._context, self._codec), "the generation helper"
        )
        self._first_code = self._token(b"<|codec_0|>")

    def run(self, text: str, frames: int, codebook: int) -> dict[str, Any]:
        """Speaks so many frames; its audio comes at the end, in one piece."""
        api, mtmd, helper = self._api, self._mtmd, self._helper
        api.llama_memory_clear(api.llama_get_memory(self._context), True)
        mtmd.mtmd_helper_gen_audio_reset(helper)
        prompt = text.encode()
        given = mtmd.mtmd_helper_gen_audio_inp(
            prompt=prompt,
            prompt_len=len(prompt),
            lang=b"english",
            top_k=50,
            top_p=1.0,
            seed=_SEED,
            out_type=mtmd.MTMD_HELPER_GEN_AUDIO_OUTTYPE_PCM,
        )
        start = time.perf_counter()
        self._zero(mtmd.mtmd_helper_gen_audio_set_input(helper, C.byref(given)), "the prompt")
        while (left := mtmd.mtmd_helper_gen_audio_step_prompt(helper, _BATCH)) > 0:
            pass
        self._zero(left, "the prompt")
        hidden = api.llama_get_embeddings_ith(self._context, -1)
        following, stop = C.POINTER(C.c_float)(), C.c_bool(False)
        for _ in range(frames):
            code = self._first_code + self._likeliest(codebook)
            step = mtmd.mtmd_helper_gen_audio_step_gen(
                helper, code, hidden, C.byref(following), C.byref(stop)
            )
            self._zero(step, "a frame")
            if stop.value:
                raise RuntimeError("llama.cpp ended the speech early")
            hidden = following
        rate, data = C.c_int32(), C.POINTER(C.c_char)()
        size, samples = C.c_size_t(), C.c_int64()
        out = (C.byref(rate), C.byref(data), C.byref(size), C.byref(samples))
        self._zero(mtmd.mtmd_helper_gen_audio_get_output(helper, *out), "the decoder")
        work_s = time.perf_counter() - start
        audio_s = samples.value / rate.value
        return {"first_audio_s": work_s, "work_s": work_s, "audio_s": audio_s, "frames": frames}

    def _likeliest(self, codebook: int) -> int:
        """The code with the largest logit: end-of-speech is no code."""
        import numpy as np

        logits = self._api.llama_get_logits_ith(self._context, -1)
        all_of_them = np.ctypeslib.as_array(logits, (self._first_code + codebook,))
        return int(all_of_them[self._first_code :].argmax())

    def _token(self, text: bytes) -> int:
        api = self._api
        found = (api.llama_token * 8)()
        vocabulary = api.llama_model_get_vocab(self._model)
        n = api.llama_tokenize(vocabulary, text, len(text), found, len(found), False, True)
        if n != 1:
            raise RuntimeError(f"{text.decode()} is no token of this model")
        return int(found[0])

    def _receive(self, level: int, text: bytes, _user: Any) -> None:
        if level == _LOG_ERROR:
            self._errors.append(text.decode("utf-8", "replace").strip())

    def _need(self, handle: Any, what: str) -> Any:
        if not handle:
            raise RuntimeError(f"{what} failed: {'; '.join(self._errors) or 'no reason given'}")
        return handle

    def _zero(self, status: int, what: str) -> None:
        if status != 0:
            raise RuntimeError(f"{what} failed: {'; '.join(self._errors) or f'code {status}'}")


def _llama_cpp(a: argparse.Namespace) -> dict[str, Any]:
    start = time.perf_counter()
    llama = _Llama(a)
    load_s = time.perf_counter() - start
    llama.run(a.text, min(a.frames, _WARMING), a.codebook)
    return {"load_s": load_s, **llama.run(a.text, a.frames, a.codebook)}


def _end_with_parent() -> None:
    """Watches from a thread: native calls take long, and a parent may be killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """One run as the arguments say; 1 with an error on standard output when it fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=("kazeia", "llama.cpp"))
    parser.add_argument("talker", type=Path)
    parser.add_argument("codec", type=Path)
    parser.add_argument("--text", required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--codebook", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--no-repack", action="store_true")
    a = parser.parse_args()
    _end_with_parent()
    try:
        figures = _kazeia(a) if a.engine == "kazeia" else _llama_cpp(a)
    except Exception as error:
        sys.stdout.write(json.dumps({"error": str(error) or type(error).__name__}) + "\n")
        return 1
    from kazeia_engine.tools.machine import peak_rss_bytes

    figures["peak_rss_mb"] = peak_rss_bytes() / 1e6
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
