"""A loaded Qwen3-TTS model: text in, audio out."""

from __future__ import annotations

import ctypes as C
import dataclasses
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from kazeia_engine import binding
from kazeia_engine.devices import Devices, json_text
from kazeia_engine.errors import InvalidInput
from kazeia_engine.handle import Handle
from kazeia_engine.live import LiveStream
from kazeia_engine.modelfiles import QUANTIZATION_KEY, find_pair, read_header
from kazeia_engine.native_log import ggml_library
from kazeia_engine.options import (
    LiveOptions,
    SpeechOptions,
    integer,
    one_of,
    stream_params,
    voice_options,
)
from kazeia_engine.prompt import Prompt, build_prompt, open_prompt, text_ids
from kazeia_engine.stream import DecoderStream, Stream, as_codes
from kazeia_engine.tokenizer import Tokenizer
from kazeia_engine.trace import trace, trace_decoder
from kazeia_engine.types import ModelInfo, Result
from kazeia_engine.vocabulary import ModelVocabulary

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["Model"]

Precision = Literal["auto", "f32"]
_PRECISIONS = {"auto": 0, "f32": 1}
Backend = Literal["auto", "ggml"]
_BACKENDS = {"auto": 0, "ggml": 1}
_SIZES = (
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


class Model:
    """A model and the two threads that speak with it. Safe to use from several threads.

    Made by `load`; close it (or use it as a context manager) to end running streams and free the
    weights.
    """

    def __init__(
        self,
        handle: Handle,
        tokenizer: Tokenizer,
        vocabulary: ModelVocabulary,
        info: ModelInfo,
        devices: Devices,
    ) -> None:
        self.info = info
        self.devices = devices
        self._handle = handle
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

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
            loading = pool.submit(Handle, pair, params)
            try:
                tokenizer = Tokenizer(pair.talker)
                vocabulary = ModelVocabulary.load(pair.talker)
                told = (
                    read_header(f).values.get(QUANTIZATION_KEY) for f in (pair.talker, pair.codec)
                )
                quantization = ", ".join(str(text) for text in told if text)
            except BaseException:
                if loading.exception() is None:
                    loading.result().close()
                raise
            handle = loading.result()
        info = _describe(handle.info, vocabulary, precision, quantization, devices)
        return cls(handle, tokenizer, vocabulary, info, devices)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of the text in its chat envelope: 3 role tokens, the text, 5 trailing."""
        return self._tokenizer.wrap(text)

    def synthesize(self, text: str, **options: Unpack[SpeechOptions]) -> Result:
        """Speaks the text and returns all of it. Options and errors as in `stream`."""
        with self.stream(text, **options) as stream:
            pcm = [chunk.pcm for chunk in stream]
            joined = np.concatenate(pcm) if pcm else np.empty(0, np.float32)
            return dataclasses.replace(stream.result, pcm=joined)

    def stream(self, text: str, **options: Unpack[SpeechOptions]) -> Stream:
        """Starts speaking; iterate over the chunks as they are made. close() cancels.

        What is not given is as `kazeia_engine.options.default_options` says.

        Args:
            text: what to say, any of the model's languages.
            **options:
                speaker: one of info.speakers, for models that have them; None: the model's choice.
                language: "auto", or one of info.languages (ISO codes work too).
                instruct: how to say it, where the model follows instructions.
                seed: same model, text, seed and settings: same codes.
                temperature: of codebook 0, 0..100; 0 takes the likeliest code.
                top_k: candidates kept; 0: all.
                top_p: probability mass kept, more than 0 and at most 1.
                repetition_penalty: of codebook 0 over this utterance; 1: off.
                rep_window: codes the penalty looks back on; 0: all.
                cp_temperature, cp_top_k, cp_top_p: the same for codebooks 1 to 15.
                text_mode: "whole" lays all text before the audio, "streaming" feeds one token a
                    frame; "auto" is "whole" for a complete text.
                max_frames: cut after so many frames of 80 ms.
                min_frames: end-of-speech is masked before.
                chunk: frames a chunk; 0: one chunk at the end; "auto": 1 first, then growing.
                skip_frames: leading frames whose audio is dropped.
                guard: a Guard against speech that does not end; None: none.
                cp_cache: False: the recomputing oracle.
                ignore_eos: always max_frames, for benchmarks.
                profile: times of the decoder's stages.

        Raises:
            InvalidInput: the text is empty or too long, or an option is unknown or out of range.
            EngineClosed: the model was closed.
            EngineError: the process was forked after loading.
        """
        prompt, params = self._prepare(text, **options)
        return self._start(params, prompt)

    def stream_live(self, **options: Unpack[LiveOptions]) -> LiveStream:
        """Starts speaking a text that is still being written; push it into the stream.

        The streaming layout is used: speech starts with the first word, and codes and audio are
        those of `stream(text, text_mode="streaming")` wherever the pieces of the text end.

        Args:
            **options: as in `stream`, without text_mode.

        Raises:
            InvalidInput: an option is unknown or out of range.
            EngineClosed: the model was closed.
        """
        voice, others = voice_options(options)

        def prepare(ids: list[int]) -> tuple[Prompt, binding.StreamParams]:
            prompt = open_prompt(self._vocabulary, self._tokenizer, ids, **voice)
            return prompt, self._params(prompt, others)

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
        array = as_codes(codes, self._handle.info.n_codebooks)
        size = integer("chunk", chunk, 0, 1 << 20) or max(1, len(array))
        with self.decode_stream() as decoder:
            parts = [decoder.feed(array[i : i + size]) for i in range(0, len(array), size)]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def decode_stream(self) -> DecoderStream:
        """A decoder with memory, for frames that arrive bit by bit."""
        n = self._handle.info
        with self._handle.use() as model:
            return DecoderStream(
                model, n_codebooks=n.n_codebooks, samples_per_frame=n.samples_per_frame
            )

    def trace(
        self,
        text: str,
        *,
        frames: int,
        force_codes: npt.ArrayLike | None = None,
        **options: Unpack[SpeechOptions],
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
        frames = integer("frames", frames, 1, self._handle.info.max_positions)
        options.setdefault("max_frames", frames)
        _prompt, params = self._prepare(text, **options)  # it owns what params points to
        return trace(self._handle, params, frames, force_codes)

    def most_frames(self, text: str, **options: Unpack[SpeechOptions]) -> int:
        """Frames that fit behind the prompt of a text. Options and errors as in `stream`."""
        return self._most_frames(self._prepare(text, **options)[0])

    def measure_passes(self, threads: int) -> tuple[float, float] | None:
        """Seconds of the matrix products alone that a frame needs: (talker, code predictor).

        None for weight types that only ggml multiplies. Raises InvalidInput for threads outside
        1..1024.
        """
        threads = integer("threads", threads, 1, 1024)
        passes = binding.PassesStruct(C.sizeof(binding.PassesStruct), threads)
        with self._handle.use() as model:
            binding.check(binding.library().kz_measure_passes(model, C.byref(passes)))
        return (passes.talker_s, passes.cp_s) if passes.cp_s > 0 else None

    def placement(self) -> dict[str, Any]:
        """Which node of a part's graphs runs on which device, and what is copied between devices.

        Returns, for JSON: max_rows, and parts with part, device, weights (device_bytes,
        host_bytes) and graphs, each with splits (stretches of nodes on one device), copies and
        copied_bytes (between devices, in one run) and nodes (device, op, count). A part on the
        engine's own kernels has no graphs.
        """
        with self._handle.use() as model:
            text = json_text(binding.library().kz_model_placement, model)
        found: dict[str, Any] = json.loads(text)
        return found

    def trace_decoder(self, codes: npt.ArrayLike) -> dict[str, npt.NDArray[np.float32]]:
        """Outputs [time, channels] of every decoder stage for codes int[T, 16] decoded at once."""
        return trace_decoder(self._handle, codes)

    def close(self) -> None:
        """Ends running streams (their readers get EngineClosed) and frees the weights.

        Waits for a trace or a stream that is just being opened.
        """
        self._handle.close()

    def _start(self, params: binding.StreamParams, prompt: Prompt) -> Stream:
        # The engine copies the ids while the stream opens; prompt keeps them alive until then.
        with self._handle.use() as model:
            return Stream(
                model,
                params,
                owner=self,
                sample_rate=self.info.sample_rate,
                n_codebooks=self._handle.info.n_codebooks,
                warnings=prompt.warnings,
            )

    def _prepare(
        self, text: str, **options: Unpack[SpeechOptions]
    ) -> tuple[Prompt, binding.StreamParams]:
        text_mode = options.pop("text_mode", "auto")
        voice, others = voice_options(options)
        prompt = build_prompt(self._vocabulary, self._tokenizer, text, text_mode=text_mode, **voice)
        return prompt, self._params(prompt, others)

    def _params(self, prompt: Prompt, options: dict[str, Any]) -> binding.StreamParams:
        """The native parameters of a stream; they point into `prompt`."""
        longest = self._most_frames(prompt)
        most = self._handle.info.max_positions
        if longest < 1:
            raise InvalidInput(
                f"the prompt has {prompt.n_positions} positions, the model takes {most}",
                param="text",
            )
        params = stream_params(options, max_positions=most, longest=longest)
        params.prompt = prompt.native()
        return params

    def _most_frames(self, prompt: Prompt) -> int:
        return int(self._handle.info.max_positions) - prompt.n_positions

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _describe(
    native: binding.InfoStruct,
    vocabulary: ModelVocabulary,
    precision: Precision,
    quantization: str,
    devices: Devices,
) -> ModelInfo:
    return vocabulary.info(
        sample_rate=native.sample_rate,
        frame_rate=native.sample_rate / native.samples_per_frame,
        sizes={key: int(getattr(native, key)) for key in _SIZES},
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
