"""The messages of the speech protocol: what a client may send, and what it is told."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kazeia_server.audio.formats import FormatName, OutputFormat
from kazeia_server.doors.fields import SampleRate, SpeechOptions, TaskType, json_object
from kazeia_server.errors import InvalidRequest, ServerError, Unavailable, error_body
from kazeia_server.voices.backend import BackendInfo, SynthesisStats

__all__ = [
    "MESSAGES",
    "AuthMessage",
    "EmptyMessage",
    "SessionConfig",
    "TextMessage",
    "audio_start_message",
    "error_message",
    "parse_message",
    "stats_message",
    "translated",
]

MESSAGES = (
    "session.auth",
    "session.config",
    "input.text",
    "input.flush",
    "input.done",
    "input.cancel",
    "session.close",
    "ping",
)
# Fields of session.config that other Qwen3-TTS servers have (vLLM-Omni, SGLang-Omni, ...).
_RENAMED = {
    "instructions": "instruct",
    "max_new_tokens": "max_frames",
    "initial_codec_chunk_frames": "chunk",
    "lang_code": "language",
}
_SPLITS = {"none": "none", "sentence": "sentence", "clause": "sentence"}
_WITHOUT_MEANING = ("model", "stream_audio", "stream")
_NOT_SUPPORTED = {
    "ref_audio": "reference recordings",
    "ref_text": "reference recordings",
    "x_vector_only_mode": "reference recordings",
    "speaker_embedding": "speaker embeddings",
    "word_timestamps": "word timestamps",
}


class SessionConfig(SpeechOptions):
    """session.config: replaces the options of later utterances as a whole."""

    response_format: FormatName | None = Field(default=None, description="pcm")
    sample_rate: SampleRate | None = Field(default=None, description="Hz; the voice's own")
    task_type: TaskType | None = Field(
        default=None, description="refused unless it is what the model does"
    )

    @property
    def output(self) -> OutputFormat:
        """The format of the audio frames."""
        return OutputFormat(self.response_format or "pcm", self.sample_rate)


class TextMessage(BaseModel):
    """input.text"""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: str


class AuthMessage(BaseModel):
    """session.auth"""

    model_config = ConfigDict(strict=True, extra="forbid")

    key: str


class EmptyMessage(BaseModel):
    """Every message without fields."""

    model_config = ConfigDict(strict=True, extra="forbid")


def parse_message(data: str) -> tuple[str, dict[str, Any]]:
    """The type of a message and its other fields.

    Raises InvalidRequest.
    """
    message = json_object(data)
    kind = message.pop("type", None)
    if not isinstance(kind, str) or kind not in MESSAGES:
        got = "nothing" if kind is None else ascii(kind)[:60]
        raise InvalidRequest(f"type must be one of {', '.join(MESSAGES)}; got {got}", param="type")
    return kind, message


def translated(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields under our names; ours win where both are there.

    Raises InvalidRequest for a field that asks for what there is not.
    """
    ours = {name: value for name, value in fields.items() if name not in _WITHOUT_MEANING}
    for name, what in _NOT_SUPPORTED.items():
        if ours.pop(name, None):
            raise InvalidRequest(f"{name}: {what} are not supported: leave it out", param=name)
    for theirs, name in _RENAMED.items():
        value = ours.pop(theirs, None)
        if value is not None and ours.get(name) is None:
            ours[name] = value
    whole = ours.pop("non_streaming_mode", None)
    if whole is not None:
        if not isinstance(whole, bool):
            raise InvalidRequest(
                f"non_streaming_mode is {ascii(whole)[:60]}: expected true or false",
                param="non_streaming_mode",
            )
        ours.setdefault("text_mode", "whole" if whole else "streaming")
    split = ours.pop("split_granularity", None)
    if split is not None:
        if not isinstance(split, str) or split not in _SPLITS:
            raise InvalidRequest(
                f"split_granularity is {ascii(split)[:60]}: expected {', '.join(_SPLITS)}",
                param="split_granularity",
            )
        ours.setdefault("split", _SPLITS[split])
    return ours


def audio_start_message(
    index: int, text: str, output: OutputFormat, info: BackendInfo, voice: str | None
) -> dict[str, Any]:
    """audio.start: what the audio of an utterance is."""
    return {
        "type": "audio.start",
        "utterance_index": index,
        "sentence_index": 0,
        "sentence_text": text,
        "format": output.name,
        "encoding": "s16le" if output.name == "pcm" else None,
        "content_type": output.content_type,
        "sample_rate": output.rate_for(info.sample_rate),
        "channels": 1,
        "voice": voice,
        "source": info.source,
    }


def error_message(error: Exception, index: int | None = None) -> dict[str, Any]:
    """error: what went wrong, for people and for programs; `index`: the utterance it ends."""
    body = error_body(error)["error"]
    message = {
        "type": "error",
        "message": body["message"],
        "error_type": body["type"],
        "code": body["code"],
        "param": error.param if isinstance(error, ServerError) else None,
        "utterance_index": index,
    }
    if isinstance(error, Unavailable):
        message["retry_after_s"] = error.retry_after_s
    return message


def stats_message(index: int, stats: SynthesisStats, total_bytes: int) -> dict[str, Any]:
    """audio.done: the figures of an utterance."""
    return {
        "type": "audio.done",
        "utterance_index": index,
        "sentence_index": 0,
        "ended": stats.ended,
        "ttfb_s": stats.ttfb_s,
        "voice_ttfb_s": stats.voice_ttfb_s,
        "rtf": stats.rtf,
        "n_chunks": stats.n_chunks,
        "audio_s": stats.audio_s,
        "frames": stats.frames,
        "total_bytes": total_bytes,
        "pieces": stats.pieces,
        "retries": stats.retries,
        "stages": stats.stages,
        "warnings": list(stats.warnings),
        "error": False,
    }
