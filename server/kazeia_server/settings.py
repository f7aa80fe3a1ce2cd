"""Settings of the server: environment variables KZTTS_*, overridden by command-line flags."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from kazeia_server.errors import InvalidRequest

__all__ = ["PREFIX", "Settings", "load_settings", "unknown_variables"]

PREFIX = "KZTTS_"


class Settings(BaseSettings):
    """Read once at start; never changes afterwards."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
    )

    model: Path | None = Field(
        default=None, description="folder of a Qwen3-TTS model; none: built-in"
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(
        default=8080, ge=0, le=65535, description="port to listen on; 0: any free one"
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="engine threads; none: all cores"
    )

    stream_chunk: Literal["auto"] | Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default="auto", description="frames a chunk: auto, 0 (all at the end) or a number"
    )
    cp_cache: bool = Field(
        default=True, description="0: the code predictor recomputes (slow, the oracle)"
    )
    temp: float = Field(default=0.9, ge=0.0, le=10.0, description="default temperature")
    topk: int = Field(default=50, ge=0, le=100_000, description="default top-k; 0: off")
    topp: float = Field(default=1.0, gt=0.0, le=1.0, description="default top-p; 1: off")
    repp: float = Field(
        default=1.05, ge=0.1, le=10.0, description="default repetition penalty; 1: off"
    )
    cp_temp: float = Field(default=0.9, ge=0.0, le=10.0, description="code predictor temperature")
    cp_topk: int = Field(default=50, ge=0, le=100_000, description="code predictor top-k")
    cp_topp: float = Field(default=1.0, gt=0.0, le=1.0, description="code predictor top-p")
    cp_repp: float = Field(
        default=1.0,
        ge=1.0,
        le=1.0,
        description="the code predictor has no repetition penalty: only 1",
    )

    max_text_chars: int = Field(
        default=20_000, ge=1, le=10_000_000, description="characters an utterance"
    )
    max_audio_s: float = Field(
        default=1800.0, gt=0.0, le=20_000.0, description="seconds an utterance"
    )
    max_concurrent: int = Field(default=2, ge=1, le=1024, description="utterances made at once")
    max_queue: int = Field(
        default=16, ge=0, le=100_000, description="utterances waiting for a slot"
    )
    max_body_bytes: int = Field(default=1 << 20, ge=1024, description="bytes of an HTTP body")
    max_message_bytes: int = Field(
        default=256 << 10, ge=1024, le=64 << 20, description="bytes of a WebSocket message"
    )
    send_timeout_s: float = Field(
        default=30.0, gt=0.0, description="a client that takes no audio for so long is dropped"
    )
    idle_timeout_s: float = Field(
        default=300.0, gt=0.0, description="a WebSocket silent for so long is closed"
    )
    shutdown_timeout_s: int = Field(
        default=8, ge=0, le=3600, description="seconds running requests get to end at shutdown"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info")


def load_settings(**overrides: Any) -> Settings:
    """Settings from the environment; overrides that are not None win.

    Raises InvalidRequest naming the variable, what it may be and what it is.
    """
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False, include_context=False):
            name = str(item["loc"][0]) if item["loc"] else "settings"
            line = f"{PREFIX}{name.upper()}: {item['msg']}, got {item['input']!r}"
            lines.append(line)
        raise InvalidRequest("; ".join(lines)) from None


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """One warning for each KZTTS_ variable that no setting reads, with the nearest known name."""
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    warnings = []
    for name in sorted(environ):
        if not name.upper().startswith(PREFIX) or name.upper() in known:
            continue
        near = difflib.get_close_matches(name.upper(), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        warnings.append(f"unknown setting {name} is ignored{hint}")
    return warnings
