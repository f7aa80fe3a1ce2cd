"""What can be asked for besides the text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from kazeia_client.errors import UsageError
from kazeia_client.formats import FormatName

__all__ = ["SpeechOptions", "checked_text", "given"]


class SpeechOptions(TypedDict, total=False):
    """How to speak; None and what is left out mean the server's default.

    The server checks names and ranges, and says what it expected.  `voice`, `language` ("auto",
    "french", "fr"), `instruct` (how to speak, in words), `seed` (the same seed and text give the
    same audio), sampling fields (those with cp_ concern the code predictor), `text_mode` ("auto",
    "whole", "streaming"), `max_frames` (frames of 80 ms), `chunk` (frames a chunk, or "auto"),
    `speed` (0.25 to 4), `clean` (make markup speakable), `split` ("auto", "sentence", "none"),
    `response_format`, `sample_rate` in Hz.
    """

    voice: str | None
    language: str | None
    instruct: str | None
    seed: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    repetition_penalty: float | None
    cp_temperature: float | None
    cp_top_k: int | None
    cp_top_p: float | None
    text_mode: Literal["auto", "whole", "streaming"] | None
    max_frames: int | None
    chunk: int | Literal["auto"] | None
    speed: float | None
    clean: bool | None
    split: Literal["auto", "sentence", "none"] | None
    response_format: FormatName | None
    sample_rate: int | None


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that say something.

    Raises UsageError for what cannot be said in JSON.
    """
    found = {name: value for name, value in options.items() if value is not None}
    for name, value in found.items():
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8")
        except (TypeError, ValueError) as error:
            raise UsageError(f"{name} cannot be sent: {error}") from None
    return found


def checked_text(text: str) -> str:
    """`text`, if it can be sent.

    Raises UsageError for what is no text, or not all of one.
    """
    if not isinstance(text, str):
        raise UsageError(f"expected text, got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the text holds half of a surrogate pair at position {error.start}: expected whole "
            "characters"
        ) from None
    return text
