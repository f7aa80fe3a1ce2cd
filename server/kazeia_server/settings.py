"""Settings of the server: environment variables KZTTS_*, overridden by command-line flags."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

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
    wyoming_port: int | None = Field(
        default=10200,
        ge=0,
        le=65535,
        description="port of the Wyoming protocol; off: none, as with API keys",
    )
    root_path: str = Field(
        default="", description="path prefix under which a proxy serves this server"
    )
    api_keys: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="keys that clients need, separated by commas; empty: none"
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="web origins that may use the server, separated by commas; *: any"
    )
    forwarded_allow_ips: str = Field(
        default="127.0.0.1", description="proxies whose X-Forwarded headers are believed"
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="engine threads; none: all cores"
    )
    device_talker: str = Field(
        default="cpu", min_length=1, description="device of the talker: cpu, auto or a name"
    )
    device_cp: str = Field(default="cpu", min_length=1, description="device of the code predictor")
    device_decoder: str = Field(default="cpu", min_length=1, description="device of the decoder")
    max_rows: int = Field(
        default=0,
        ge=0,
        le=1 << 30,
        description="most rows of a product on a device, 64 or more; 0: any",
    )

    stream_chunk: Literal["auto"] | Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default="auto", description="frames a chunk: auto, 0 (all at the end) or a number"
    )
    cp_cache: bool = Field(
        default=True, description="0: the code predictor recomputes (slow, the oracle)"
    )
    # Sampling of a request that does not choose; none: as the engine does by itself.
    temp: float | None = Field(default=None, ge=0.0, le=10.0, description="default temperature")
    topk: int | None = Field(default=None, ge=0, le=100_000, description="default top-k; 0: off")
    topp: float | None = Field(default=None, gt=0.0, le=1.0, description="default top-p; 1: off")
    repp: float | None = Field(
        default=None, ge=0.1, le=10.0, description="default repetition penalty; 1: off"
    )
    cp_temp: float | None = Field(
        default=None, ge=0.0, le=10.0, description="code predictor temperature"
    )
    cp_topk: int | None = Field(default=None, ge=0, le=100_000, description="code predictor top-k")
    cp_topp: float | None = Field(default=None, gt=0.0, le=1.0, description="code predictor top-p")
    cp_repp: float = Field(
        default=1.0,
        ge=1.0,
        le=1.0,
        description="the code predictor has no repetition penalty: only 1",
    )

    clean_text: bool = Field(
        default=True, description="0: markup and addresses go to the voice as they are"
    )
    split: Literal["auto", "sentence", "none"] = Field(
        default="auto", description="pieces of a text: auto, sentence or none"
    )
    sentence_pause_s: float = Field(
        default=0.25, ge=0.0, le=10.0, description="silence between sentences of two pieces"
    )
    paragraph_pause_s: float = Field(
        default=0.6, ge=0.0, le=10.0, description="silence between paragraphs"
    )
    trim_silence: bool = Field(
        default=True, description="0: silence before the first sound is kept"
    )
    guard: bool = Field(default=True, description="0: speech that does not end is not cut")
    guard_frames_per_token: float = Field(
        default=15.0, ge=1.0, le=1000.0, description="frames of 80 ms a token of text may take"
    )
    guard_min_frames: int = Field(
        default=64, ge=1, le=100_000, description="frames any text may take"
    )
    guard_silence_s: float = Field(
        default=4.0, ge=0.5, le=600.0, description="so long a silence ends a piece"
    )
    guard_retries: int = Field(
        default=2, ge=0, le=10, description="other seeds tried while nothing has been sent"
    )
    voice_aliases: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="more names for voices: alias=voice, separated by commas"
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
        default=256 << 10,
        ge=1024,
        le=64 << 20,
        description="bytes of a WebSocket message or Wyoming event",
    )
    send_timeout_s: float = Field(
        default=30.0,
        gt=0.0,
        description="a client that takes no audio, or sends no request, for so long is dropped",
    )
    text_timeout_s: float = Field(
        default=60.0,
        gt=0.0,
        description="an utterance whose text stops coming for so long is ended",
    )
    max_sessions: int = Field(
        default=256, ge=1, le=1_000_000, description="WebSockets and Wyoming connections at once"
    )
    idle_timeout_s: float = Field(
        default=300.0, gt=0.0, description="a connection silent for so long is closed"
    )
    shutdown_timeout_s: int = Field(
        default=8,
        ge=0,
        le=3600,
        description="seconds that what is being spoken gets to end at shutdown",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info")
    log_format: Literal["console", "json"] = Field(default="console")

    @field_validator("api_keys", "cors_origins", "voice_aliases", mode="before")
    @classmethod
    def _split_list(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        parts = tuple(part.strip() for part in value.split(",") if part.strip())
        if value and not parts:  # somebody who meant to set a key must not run without one
            raise ValueError("expected at least one entry, or nothing")
        return parts

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _in_lower_case(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("voice_aliases")
    @classmethod
    def _are_pairs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            alias, equals, voice = (part.strip() for part in entry.partition("="))
            if not (alias and equals and voice):
                raise ValueError(f"{entry!r} is not of the form alias=voice")
        return value

    @field_validator("wyoming_port", mode="before")
    @classmethod
    def _off_is_none(cls, value: Any) -> Any:
        if isinstance(value, str) and value.strip().lower() == "off":
            return None
        if isinstance(value, str) and not value.strip().isdecimal():
            raise ValueError("expected a port or off")
        return value


def load_settings(**overrides: Any) -> Settings:
    """Settings from the environment; overrides that are not None win.

    The Wyoming protocol has no keys: where keys are set, its port must be asked for.

    Raises InvalidRequest naming the variable, or the flag of an override, what it may be and what
    it is.
    """
    try:
        settings = Settings(**{k: value for k, value in overrides.items() if value is not None})
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False, include_context=False):
            name = str(item["loc"][0]) if item["loc"] else "settings"
            given = overrides.get(name) is not None
            flag = f"--{name.removesuffix('_s').replace('_', '-')}"
            shown = flag if given else f"{PREFIX}{name.upper()}"
            lines.append(f"{shown}: {item['msg']}, got {item['input']!r}")
        raise InvalidRequest("; ".join(lines)) from None
    if settings.api_keys and "wyoming_port" not in settings.model_fields_set:
        return settings.model_copy(update={"wyoming_port": None})
    return settings


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
