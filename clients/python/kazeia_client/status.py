"""What a server says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kazeia_client.errors import UnexpectedAnswer
from kazeia_client.foreign import UNUSABLE, optional_text, whole

__all__ = ["Health", "Voice", "Voices"]


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice that can be asked for by its name."""

    name: str
    default: bool


@dataclass(frozen=True, slots=True)
class Voices:
    """The voices and languages of a server; `voices` is empty where the model has none by name.

    `source` is "qwen3-tts" or "built-in"; `sample_rate` in Hz.
    """

    voices: tuple[Voice, ...]
    languages: tuple[str, ...]
    model: str
    source: str
    sample_rate: int
    follows_instructions: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the voices."""
        return tuple(voice.name for voice in self.voices)

    @classmethod
    def of_answer(cls, answer: object) -> Voices:
        """The answer of GET /v1/voices."""
        try:
            fields = _object(answer)
            return cls(
                voices=tuple(
                    Voice(str(voice["name"]), bool(voice["default"])) for voice in fields["voices"]
                ),
                languages=tuple(map(str, fields["languages"])),
                model=str(fields["model"]),
                source=str(fields["voice_source"]),
                sample_rate=whole(fields["sample_rate"]),
                follows_instructions=bool(fields["follows_instructions"]),
            )
        except UNUSABLE as error:
            raise UnexpectedAnswer(f"expected a list of voices: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a server: "loading", "ready", "failed", "draining" or "closing".

    `running` and `waiting` count utterances; `failure` says why there is no voice.
    """

    version: str
    state: str
    source: str
    model: str | None
    running: int
    waiting: int
    failure: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether speech can be asked for now."""
        return self.state == "ready"

    @classmethod
    def of_answer(cls, answer: object) -> Health:
        """The answer of GET /health."""
        try:
            fields = _object(answer)
            return cls(
                version=str(fields["version"]),
                state=str(fields["state"]),
                source=str(fields["voice_source"]),
                model=optional_text(fields["model"]),
                running=whole(fields["running"]),
                waiting=whole(fields["waiting"]),
                failure=optional_text(fields.get("failure")),
            )
        except UNUSABLE as error:
            raise UnexpectedAnswer(f"expected the health of a server: {error!r}") from None


def _object(answer: object) -> Mapping[str, Any]:
    if not isinstance(answer, dict):
        raise TypeError(f"got {type(answer).__name__}")
    return answer
