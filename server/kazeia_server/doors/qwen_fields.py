"""Request fields that other Qwen3-TTS servers have beside ours (vLLM-Omni, SGLang-Omni, ...)."""

from __future__ import annotations

from typing import Any

from kazeia_server.errors import InvalidRequest
from kazeia_server.synthesis.backend import BackendInfo

__all__ = ["TASKS", "check_task", "translated"]

TASKS = {"CustomVoice": "custom_voice", "VoiceDesign": "voice_design", "Base": "base"}
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


def check_task(task: str | None, info: BackendInfo) -> None:
    """Raise InvalidRequest unless `task` (a key of TASKS) is what the model does."""
    kind = "custom_voice" if info.kind == "built-in" else info.kind
    if task is not None and TASKS.get(task) != kind:
        does = next((name for name, value in TASKS.items() if value == kind), info.kind)
        raise InvalidRequest(
            f"task_type is {task!r}: {info.name} does {does!r} only", param="task_type"
        )


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
