"""A loaded Qwen3-TTS model: text in, audio out."""

from __future__ import annotations

import ctypes as C
import dataclasses
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from kazeia_engine import binding
from kazeia_engine.devices import Devices, json_text
from kazeia_engine.errors import EngineClosed, EngineError, InvalidInput
from kazeia_engine.live import LiveStream
from kazeia_engine.metadata import QUANTIZATION_KEY
from kazeia_engine.modelfiles import ModelPair, find_pair, read_header
from kazeia_engine.native_log import ggml_library
from kazeia_engine.options import Options, guard_struct, integer, one_of, voice_options
from kazeia_engine.prompt import Prompt, build_prompt, open_prompt, text_ids
from kazeia_engine.stream import DecoderStream, Stream, as_codes
from kazeia_engine.tokenizer import Tokenizer
from kazeia_engine.types import ModelInfo, Result, TextMode
from kazeia_engine.vocabulary import ModelVocabulary

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Model"]

Precision = Literal["auto", "f32"]
_PRECISIONS = {"auto": 0, "f32": 1}
Backend = Literal["auto", "ggml"]
_BACKENDS = {"auto": 0, "ggml": 1}
_DECODER_STAGES = (
    "quant",
    "preconv",
    "pretr",
    "upsample",
    "dac.entry",
    "dac.0",
    "dac.1",
    "dac.2",
    "dac.3",
    "pcm",
)


class Model:
    """A model and the two threads that speak with it. Safe to use from several threads.

    Made by `load`; close it (or use it as a context manager) to end running streams and free the
    weights.
    """

    def __init__(
        self,
        handle: C.c_void_p,
        tokenizer: Tokenizer,
        vocabulary: ModelVocabulary,
        precision: Precision,
        quantization: str = "",
        devices: Devices | None = None,
    ) -> None:
        self.devices = devices or Devices()
        self._lib = binding.library()
        self._handle: C.c_void_p | None = handle
        self._process = os.getpid()  # the engine's threads do not exist in a forked child
        self._idle = threading.Condition()  # guards the handle and the calls that use it
        self._calls = 0
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._native = binding.InfoStruct(struct_size=C.sizeof(binding.InfoStruct))
        binding.check(self._lib.kz_model_get_info(handle, C.byref(self._native)))
        self.info: ModelInfo = _describe(
            self._native, vocabulary, precision, quantization, self.devices
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        precision: Precision = "auto",
        backend: Backend = "auto",
        devices: Devices | str | None = None,
    ) -> Model:
        """Loads the GGUF pair of a model.

        Args:
            path: the folder with the two files, or the talker file beside its codec file.
            threads: cores to use in all; None: as many as the process may run on.
            precision: "auto" keeps the weights as the files have them; "f32" dequantises
                everything (the oracle that the fast formats are checked against).
            backend: of the language models.  "auto" takes the engine's own kernels, and ggml
                graphs for weight types that only ggml multiplies; "ggml" takes graphs for all (the
                oracle of the kernels; slower).
            devices: where the parts are computed, or the name of a device for all of them; None:
                the engine's own kernels.

        Raises:
            ModelNotFound: the path or one file of the pair does not exist.
            ModelFormatError: a file is damaged or no Qwen3-TTS model; names the tensor or key.
            InvalidInput: threads, precision or backend out of range, or no such device.
            EngineError: a device has not enough memory.
        """
        if devices is None or isinstance(devices, str):
            devices = Devices.all("cpu" if devices is None else devices)
        elif not isinstance(devices, Devices):
            raise InvalidInput(
                f"devices is {devices!r}, expected Devices, a name or None", param="devices"
            )
        if threads is not None:
            threads = integer("threads", threads, 1, 1024)
        params = binding.LoadParams(
            struct_size=C.sizeof(binding.LoadParams),
            precision=one_of("precision", precision, _PRECISIONS),
            n_threads=threads or 0,
            keep_ggml_log=1,  # led to native_log()
            backend=one_of("backend", backend, _BACKENDS),
            talker_device=devices.talker.strip().encode(),
            cp_device=devices.cp.strip().encode(),
            decoder_device=devices.decoder.strip().encode(),
            max_rows=devices.max_rows,
        )
        pair = find_pair(Path(path))
        ggml_library()  # leads ggml's log lines before either thread can cause one
        with ThreadPoolExecutor(max_workers=1) as pool:
            loading = pool.submit(_load_native, pair, params)
            try:
                tokenizer = Tokenizer(pair.talker)
                vocabulary = ModelVocabulary.load(pair.talker)
                told = (
                    read_header(f).values.get(QUANTIZATION_KEY) for f in (pair.talker, pair.codec)
                )
                quantization = ", ".join(str(text) for text in told if text)
            except BaseException:
                if loading.exception() is None:
                    binding.library().kz_model_free(loading.result())
                raise
            return cls(loading.result(), tokenizer, vocabulary, precision, quantization, devices)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of the text in its chat envelope: 3 role tokens, the text, 5 trailing."""
        return self._tokenizer.wrap(text)

    def synthesize(
        self,
        text: str,
        *,
        speaker: str | None = None,
        language: str = "auto",
        instruct: str | None = None,
        seed: int = 0,
        temperature: float = 0.9,
        top_k: int = 50,
        top_p: float = 1.0,
        repetition_penalty: float = 1.05,
        cp_temperature: float = 0.9,
        cp_top_k: int = 50,
        cp_top_p: float = 1.0,
        text_mode: TextMode = "auto",
        max_frames: int = 2048,
        chunk: Literal["auto"] | int = "auto",
        **extra: Any,
    ) -> Result:
        """Speaks the text and returns all of it. Options and errors as in `stream`."""
        with self.stream(
            text,
            speaker=speaker,
            language=language,
            instruct=instruct,
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            cp_temperature=cp_temperature,
            cp_top_k=cp_top_k,
            cp_top_p=cp_top_p,
            text_mode=text_mode,
            max_frames=max_frames,
            chunk=chunk,
            **extra,
        ) as stream:
            pcm = [chunk.pcm for chunk in stream]
            joined = np.concatenate(pcm) if pcm else np.empty(0, np.float32)
            return dataclasses.replace(stream.result, pcm=joined)

    def stream(
        self,
        text: str,
        *,
        speaker: str | None = None,
        language: str = "auto",
        instruct: str | None = None,
        seed: int = 0,
        temperature: float = 0.9,
        top_k: int = 50,
        top_p: float = 1.0,
        repetition_penalty: float = 1.05,
        cp_temperature: float = 0.9,
        cp_top_k: int = 50,
        cp_top_p: float = 1.0,
        text_mode: TextMode = "auto",
        max_frames: int = 2048,
        chunk: Literal["auto"] | int = "auto",
        **extra: Any,
    ) -> Stream:
        """Starts speaking; iterate over the chunks as they are made. close() cancels.

        Args:
            text: what to say, any of the model's languages.
            speaker: one of info.speakers, for models that have them; None: the model's own choice.
            language: "auto", or one of info.languages (ISO codes work too).
            instruct: how to say it, where the model follows instructions.
            seed: same model, text, seed and settings: same codes.
            temperature: of codebook 0, 0..100; 0 takes the likeliest code.
            top_k: candidates kept; 0: all.
            top_p: probability mass kept, more than 0 and at most 1.
            repetition_penalty: of codebook 0 over this utterance; 1: off.
            cp_temperature: as temperature, for codebooks 1 to 15.
            cp_top_k: as top_k, for codebooks 1 to 15.
            cp_top_p: as top_p, for codebooks 1 to 15.
            text_mode: "whole" lays all text before the audio, "streaming" feeds one token a frame;
                "auto" is "whole" for a complete text.
            max_frames: cut after so many frames of 80 ms.
            chunk: frames a chunk; 0: one chunk at the end; "auto": 1 first, then growing.
            **extra: rep_window (codes the penalty looks back on, 0: all), cp_cache (False: the
                recomputing oracle), ignore_eos (always max_frames, for benchmarks), profile
                (times of the decoder's stages), skip_frames (leading frames whose audio is
                dropped), min_frames (end-of-speech masked before, 2), guard (a Guard against
                speech that does not end; None: none).

        Raises:
            InvalidInput: the text is empty or too long, or an option is unknown or out of range.
            EngineClosed: the model was closed.
            EngineError: the process was forked after loading.
        """
        options = {
            "speaker": speaker,
            "language": language,
            "instruct": instruct,
            "seed": seed,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "repetition_penalty": repetition_penalty,
            "cp_temperature": cp_temperature,
            "cp_top_k": cp_top_k,
            "cp_top_p": cp_top_p,
            "text_mode": text_mode,
            "max_frames": max_frames,
            "chunk": chunk,
        }
        return self._open(text, **options, **extra)

    def stream_live(self, **options: Any) -> LiveStream:
        """Starts speaking a text that is still being written; push it into the stream.

        The streaming layout is used: speech starts with the first word, and codes and audio are
        those of `stream(text, text_mode="streaming")` wherever the pieces of the text end.

        Args:
            **options: as in `stream`, without text_mode.

        Raises:
            InvalidInput: an option is unknown or out of range.
            EngineClosed: the model was closed.
        """

        voice = voice_options(options)

        def prepare(ids: list[int]) -> tuple[Prompt, binding.StreamParams]:
            prompt = open_prompt(self._vocabulary, self._tokenizer, ids, **voice)
            return prompt, self._params(prompt, options)

        def open_stream(ids: list[int], closed: bool) -> Stream:
            prompt, params = prepare(ids)
            params.prompt.text_open = int(not closed)
            return self._start(params, prompt)

        prepare(text_ids(self._tokenizer, "a"))  # faults of the options are told now
        return LiveStream(self._tokenizer, self._vocabulary.text.eos, open_stream)

    def decode(self, codes: npt.ArrayLike, *, chunk: int = 0) -> npt.NDArray[np.float32]:
        """codes int[T, 16] -> float32[T * 1920] samples, -1..1.

        Args:
            codes: frames of codebook entries.
            chunk: decode so many frames at a time (0: all at once); the samples are the same.

        Raises:
            InvalidInput: wrong shape, a code outside the codebook, or a negative chunk.
        """
        array = as_codes(codes, self._native.n_codebooks)
        size = integer("chunk", chunk, 0, 1 << 20) or max(1, len(array))
        with self.decode_stream() as decoder:
            parts = [decoder.feed(array[i : i + size]) for i in range(0, len(array), size)]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def decode_stream(self) -> DecoderStream:
        """A decoder with memory, for frames that arrive bit by bit."""
        with self._use() as handle:
            return DecoderStream(
                handle,
                n_codebooks=self._native.n_codebooks,
                samples_per_frame=self._native.samples_per_frame,
            )

    def trace(
        self, text: str, *, frames: int, force_codes: npt.ArrayLike | None = None, **options: Any
    ) -> dict[str, npt.NDArray[Any]]:
        """A run that keeps intermediate values, for parity checks. Options as in `stream`.

        Args:
            text: what to say.
            frames: how many frames at most.
            force_codes: int[frames, 16] fed back in place of the run's own choices.
            **options: as in `stream`.

        Returns:
            prompt_embeds [positions, hidden]; talker_hidden [n, hidden] after the final norm;
            talker_logits [n, codec vocabulary] and cp_logits [n, 15, codebook size], raw;
            codes [n, 16]. When end-of-speech came, hidden and logits have the row that chose it.
        """
        n = self._native
        frames = integer("frames", frames, 1, n.max_positions)
        prompt, params = self._prepare(text, **{"max_frames": frames, **options})
        forced = None
        if force_codes is not None:
            forced = as_codes(force_codes, n.n_codebooks)
            if len(forced) < frames:
                raise InvalidInput(
                    f"force_codes has {len(forced)} frames, expected {frames}", param="force_codes"
                )
        arrays = {
            "prompt_embeds": np.zeros((len(prompt.text_ids), n.talker_hidden), np.float32),
            "talker_hidden": np.zeros((frames, n.talker_hidden), np.float32),
            "talker_logits": np.zeros((frames, n.codec_vocab), np.float32),
            "cp_logits": np.zeros((frames, n.n_codebooks - 1, n.codebook_size), np.float32),
        }
        codes = np.zeros((frames, n.n_codebooks), np.int32)
        out = binding.TraceOut(
            **{k: binding.floats(v) for k, v in arrays.items()}, codes=binding.ints(codes)
        )
        pointer = binding.ints(forced) if forced is not None else None
        with self._use() as handle:
            arguments = (handle, C.byref(params), pointer, frames, C.byref(out))
            binding.check(self._lib.kz_trace(*arguments))
        done = out.n_done
        scored = min(frames, done + 1)  # the row that chose end-of-speech included
        return {
            "prompt_embeds": arrays["prompt_embeds"],
            "talker_hidden": arrays["talker_hidden"][:scored],
            "talker_logits": arrays["talker_logits"][:scored],
            "cp_logits": arrays["cp_logits"][:done],
            "codes": codes[:done],
        }

    def most_frames(self, text: str, **options: Any) -> int:
        """Frames that fit behind the prompt of a text. Options and errors as in `stream`."""
        prompt, _ = self._prepare(text, **options)
        return int(self._native.max_positions) - len(prompt.text_ids)

    def measure_passes(self, threads: int) -> tuple[float, float] | None:
        """Seconds of the matrix products alone that a frame needs: (talker, code predictor).

        None for weight types that only ggml multiplies. Raises InvalidInput for threads outside
        1..1024.
        """
        threads = integer("threads", threads, 1, 1024)
        passes = binding.PassesStruct(C.sizeof(binding.PassesStruct), threads)
        with self._use() as handle:
            binding.check(self._lib.kz_measure_passes(handle, C.byref(passes)))
        return (passes.talker_s, passes.cp_s) if passes.cp_s > 0 else None

    def placement(self) -> dict[str, Any]:
        """Which node of a part's graphs runs on which device, and what is copied between devices.

        Returns, for JSON: max_rows, and parts with part, device, weights (device_bytes,
        host_bytes) and graphs, each with splits (stretches of nodes on one device), copies and
        copied_bytes (between devices, in one run) and nodes (device, op, count). A part on the
        engine's own kernels has no graphs.
        """
        with self._use() as handle:
            found: dict[str, Any] = json.loads(json_text(self._lib.kz_model_placement, handle))
        return found

    def trace_decoder(self, codes: npt.ArrayLike) -> dict[str, npt.NDArray[np.float32]]:
        """Outputs [time, channels] of every decoder stage for codes int[T, 16] decoded at once."""
        array = as_codes(codes, self._native.n_codebooks)
        if not len(array):
            raise InvalidInput("codes are empty", param="codes")
        stages = {}
        for name in _DECODER_STAGES:
            shape = (C.c_int64 * 2)()
            with self._use() as handle:
                arguments = (handle, binding.ints(array), len(array), name.encode(), shape)
                binding.check(self._lib.kz_decoder_trace(*arguments, None))
                out = np.empty((shape[0], shape[1]), np.float32)
                binding.check(self._lib.kz_decoder_trace(*arguments, binding.floats(out)))
            stages[name] = out
        return stages

    def close(self) -> None:
        """Ends running streams (their readers get EngineClosed) and frees the weights.

        Waits for a trace or a stream that is just being opened.
        """
        with self._idle:
            handle, self._handle = self._handle, None
            while self._calls:
                self._idle.wait()
        if handle is not None and os.getpid() == self._process:
            self._lib.kz_model_free(handle)

    @contextmanager
    def _use(self) -> Iterator[C.c_void_p]:
        """The handle, kept from being freed meanwhile."""
        with self._idle:
            if self._handle is None:
                raise EngineClosed("the model is closed")
            if os.getpid() != self._process:
                raise EngineError("the model was loaded before a fork: load it in the child")
            handle = self._handle
            self._calls += 1
        try:
            yield handle
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()

    def _open(self, text: str, **options: Any) -> Stream:
        prompt, params = self._prepare(text, **options)
        return self._start(params, prompt)

    def _start(self, params: binding.StreamParams, prompt: Prompt) -> Stream:
        # The engine copies the ids while the stream opens; prompt keeps them alive until then.
        with self._use() as handle:
            return Stream(
                handle,
                params,
                owner=self,
                sample_rate=self.info.sample_rate,
                n_codebooks=self._native.n_codebooks,
                warnings=prompt.warnings,
            )

    def _prepare(self, text: str, **options: Any) -> tuple[Prompt, binding.StreamParams]:
        prompt = build_prompt(
            self._vocabulary,
            self._tokenizer,
            text,
            text_mode=options.pop("text_mode", "auto"),
            **voice_options(options),
        )
        return prompt, self._params(prompt, options)

    def _params(self, prompt: Prompt, options: dict[str, Any]) -> binding.StreamParams:
        """The native parameters of a stream; they point into `prompt`."""
        o = Options(options)
        longest = self._native.max_positions - len(prompt.text_ids)
        if longest < 1:
            raise InvalidInput(
                f"the prompt has {len(prompt.text_ids)} positions, "
                f"the model takes {self._native.max_positions}",
                param="text",
            )
        params = binding.StreamParams(struct_size=C.sizeof(binding.StreamParams))
        binding.check(self._lib.kz_stream_params_default(C.byref(params)))
        p = params.prompt
        p.text_ids, p.codec_ids = binding.ints(prompt.text_ids), binding.ints(prompt.codec_ids)
        p.n_positions = len(prompt.text_ids)
        p.trailing_ids, p.n_trailing = binding.ints(prompt.trailing_ids), len(prompt.trailing_ids)
        p.pad_text_id = prompt.pad_text_id
        p.n_prefix = prompt.n_prefix
        p.n_text_tokens = 1 if prompt.layout == "streaming" else prompt.n_text_tokens
        params.talker = binding.SamplingStruct(
            o.number("temperature", 0.9, 0, 100),
            o.integer("top_k", 50, 0, 1 << 30),
            o.number("top_p", 1.0, 0, 1, above=True),
            o.number("repetition_penalty", 1.05, 0, 100, above=True),
            o.integer("rep_window", 0, 0, 1 << 30),
        )
        params.cp = binding.SamplingStruct(
            o.number("cp_temperature", 0.9, 0, 100),
            o.integer("cp_top_k", 50, 0, 1 << 30),
            o.number("cp_top_p", 1.0, 0, 1, above=True),
            1.0,
            0,
        )
        params.seed = o.integer("seed", 0, 0, (1 << 64) - 1)
        params.max_frames = min(o.integer("max_frames", 2048, 1, 1 << 30), longest)
        params.min_frames = min(o.integer("min_frames", 2, 0, 1 << 30), params.max_frames)
        chunk = o.take("chunk", "auto")
        params.chunk = (
            -1
            if isinstance(chunk, str) and chunk == "auto"
            else integer("chunk", chunk, 0, self._native.max_positions)
        )
        params.skip_frames = o.integer("skip_frames", 0, 0, self._native.max_positions)
        params.cp_recompute = int(not o.flag("cp_cache", True))
        params.ignore_eos = int(o.flag("ignore_eos", False))
        params.profile = int(o.flag("profile", False))
        params.guard = guard_struct(o.take("guard", None))
        o.done()
        return params

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


def _load_native(pair: ModelPair, params: binding.LoadParams) -> C.c_void_p:
    """The weights; takes a second or two, in which Python threads go on."""
    handle = C.c_void_p()
    paths = os.fsencode(pair.talker), os.fsencode(pair.codec)
    binding.check(binding.library().kz_model_load(*paths, C.byref(params), C.byref(handle)))
    return handle


def _describe(
    native: binding.InfoStruct,
    vocabulary: ModelVocabulary,
    precision: Precision,
    quantization: str,
    devices: Devices,
) -> ModelInfo:
    sizes = (
        "talker_hidden",
        "talker_layers",
        "cp_hidden",
        "cp_layers",
        "text_vocab",
        "codec_vocab",
        "n_codebooks",
        "codebook_size",
        "samples_per_frame",
        "max_positions",
        "weight_bytes",
        "generator_threads",
        "decoder_threads",
    )
    return vocabulary.info(
        sample_rate=native.sample_rate,
        frame_rate=native.sample_rate / native.samples_per_frame,
        sizes={key: int(getattr(native, key)) for key in sizes},
        formats={
            "talker": native.talker_type.decode(),
            "cp": native.cp_type.decode(),
            "decoder": f"{native.decoder_type.decode()}, computed in f32",
            "precision": precision,
            **({"quantization": quantization} if quantization else {}),
            **({} if devices == Devices() else {"devices": _device_text(devices)}),
        },
    )


def _device_text(devices: Devices) -> str:
    return f"talker {devices.talker}, code predictor {devices.cp}, decoder {devices.decoder}"
