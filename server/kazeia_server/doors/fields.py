"""The JSON that clients send: the fields of speech, their ranges, and how wrong ones are told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from kazeia_server.audio.formats import PCM, OutputFormat
from kazeia_server.errors import InvalidRequest, PayloadTooLarge, describe_validation
from kazeia_server.settings import Settings
from kazeia_server.synthesis.request import SynthesisRequest, build_request
from kazeia_server.text.pieces import Split
from kazeia_server.voices.backend import BackendInfo

__all__ = [
    "MAX_FRAMES",
    "MAX_INSTRUCT_CHARS",
    "MAX_NAME_CHARS",
    "MAX_SEED",
    "SampleRate",
    "SpeechOptions",
    "Speed",
    "TaskType",
    "check_size",
    "check_task",
    "json_object",
    "parse_json",
    "parse_options",
    "validated",
]

MAX_INSTRUCT_CHARS = 4096
MAX_NAME_CHARS = 200
MAX_SEED = 2**63 - 1
MAX_FRAMES = 1_000_000

_ModelT = TypeVar("_ModelT", bound=BaseModel)
_Temperature = Annotated[float, Field(ge=0.0, le=10.0)]
_TopK = Annotated[int, Field(ge=0, le=100_000)]
_TopP = Annotated[float, Field(gt=0.0, le=1.0)]
_Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
Speed = Annotated[float, Field(ge=0.25, le=4.0)]
SampleRate = Annotated[int, Field(ge=8000, le=48_000)]  # Hz
# What other Qwen3-TTS servers call the kinds of models.
TaskType = Literal["CustomVoice", "VoiceDesign", "Base"]
_TASKS: dict[TaskType, str] = {
    "CustomVoice": "custom_voice",
    "VoiceDesign": "voice_design",
    "Base": "base",
}


class SpeechOptions(BaseModel):
    """How to speak; every field may be left out."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    voice: _Name | None = Field(default=None, description="a name of GET /v1/voices")
    language: _Name | None = Field(
        default=None, description='"auto", an English name or a code like "fr"'
    )
    instruct: str | None = Field(
        default=None, max_length=MAX_INSTRUCT_CHARS, description="how to speak, in plain words"
    )
    seed: int | None = Field(
        default=None, ge=0, le=MAX_SEED, description="same seed, same audio; 0"
    )
    temperature: _Temperature | None = None
    top_k: _TopK | None = None
    top_p: _TopP | None = None
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10.0)] | None = None
    cp_temperature: _Temperature | None = None
    cp_top_k: _TopK | None = None
    cp_top_p: _TopP | None = None
    text_mode: Literal["auto", "whole", "streaming"] | None = None
    max_frames: int | None = Field(default=None, ge=1, le=MAX_FRAMES, description="frames of 80 ms")
    chunk: Literal["auto"] | Annotated[int, Field(ge=0, le=MAX_FRAMES)] | None = Field(
        default=None, description='frames a chunk: "auto", a number, or 0 for all at the end'
    )
    speed: Speed | None = Field(default=None, description="tempo, the pitch is kept; 1")
    clean: bool | None = Field(
        default=None, description="whether markup and addresses are made speakable; true"
    )
    split: Split | None = Field(
        default=None, description="pieces of a long text: auto, sentence or none"
    )

    def request(
        self, text: str, settings: Settings, *, output: OutputFormat = PCM
    ) -> SynthesisRequest:
        """The utterance asked for, with the settings' defaults where nothing is said."""
        given = self.model_dump(include=set(SpeechOptions.model_fields), exclude_none=True)
        return build_request(text, given, settings, output=output)


def parse_json(data: bytes, model: type[_ModelT], *, what: str = "the body") -> _ModelT:
    """Read JSON.

    Raises InvalidRequest saying which field is wrong and what was expected.
    """
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        known = [field.alias or name for name, field in model.model_fields.items()]
        raise describe_validation(error, what=what, known=known) from None


def parse_options(values: dict[str, Any]) -> SpeechOptions:
    """Options from Python values, None for those not given.

    Raises InvalidRequest saying which is wrong and what was expected.
    """
    return validated(SpeechOptions, values, what="the options")


def check_size(message: str, limit: int) -> None:
    """Raise PayloadTooLarge for a message of more than `limit` bytes."""
    if len(message) > limit or len(message.encode()) > limit:
        raise PayloadTooLarge(
            f"a message may have {limit} bytes; send long text in several messages"
        )


def json_object(data: str | bytes, what: str | None = None) -> dict[str, Any]:
    """The fields of a JSON object; `what` it is, for people.

    Raises InvalidRequest.
    """
    try:
        value = from_json(data)
    except ValueError as error:
        raise InvalidRequest(
            f"expected {what or 'a JSON object'}, got invalid JSON: {error}"
        ) from None
    if not isinstance(value, dict):
        expected = f"{what}, a JSON object" if what else "a JSON object"
        raise InvalidRequest(f"expected {expected}, got {type(value).__name__}")
    return value


def validated(
    model: type[_ModelT], fields: dict[str, Any], *, what: str, known: Iterable[str] | None = None
) -> _ModelT:
    """`fields` as a `model`; `known`: the fields there are, for people, if not the model's.

    Raises InvalidRequest naming `what` was read, the field, and what was expected.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        names = list(model.model_fields if known is None else known)
        raise describe_validation(error, what=what, known=names) from None


def check_task(task: TaskType | None, info: BackendInfo) -> None:
    """Raise InvalidRequest unless `task` is what the model does."""
    kind = "custom_voice" if info.kind == "built-in" else info.kind
    if task is not None and _TASKS.get(task) != kind:
        does = next((name for name, value in _TASKS.items() if value == kind), info.kind)
        raise InvalidRequest(
            f"task_type is {task!r}: {info.name} does {does!r} only", param="task_type"
        )
