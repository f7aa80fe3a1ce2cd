"""The Wyoming protocol without I/O: framing with limits, what clients may ask, what we answer.

An event is a line with a JSON object (`type`, and optionally `data`, `data_length`,
`payload_length`), then `data_length` bytes of JSON that are merged into `data`, then
`payload_length` bytes.  The events are those of PyPI `wyoming`.  Its reader bounds neither the
lengths nor the types of what it reads, so reading is done here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Attribution, Info, TtsProgram, TtsVoice

from kazeia_server import __version__
from kazeia_server.doors.fields import SpeechOptions, json_object, parse_options, validated
from kazeia_server.errors import (
    InvalidRequest,
    PayloadTooLarge,
    ServerError,
    UnknownVoice,
    error_body,
)
from kazeia_server.synthesis.check import LANGUAGE_CODES
from kazeia_server.voices.backend import BackendInfo

__all__ = [
    "EventDecoder",
    "IdleTimeout",
    "PingData",
    "StartData",
    "SynthesizeData",
    "TextData",
    "error_event",
    "info_event",
    "read_data",
    "speech_options",
]

PROGRAM = "kazeia"

# Home Assistant matches languages by BCP 47 tags.
_LANGUAGE_TAGS = {name: code for code, name in LANGUAGE_CODES.items()}
_KAZEIA = Attribution(name="Kazeia", url="")
_VOICE_MAKERS = {
    "qwen3-tts": Attribution("Qwen", "https://huggingface.co/collections/Qwen/qwen3-tts"),
    "built-in": Attribution("Maureese Williams", "https://github.com/MMWilliams/hibari"),
}


class IdleTimeout(ServerError):
    """The client has been silent for too long."""


@dataclass(frozen=True, slots=True)
class _Header:
    type: str
    data: dict[str, Any]
    data_length: int
    payload_length: int


class EventDecoder:
    """Cuts the bytes of a connection into events.

    Alternate `feed` with calls of `next_event` until it returns None; then no more is ever held
    than `max_bytes` (of one event: line, data and payload together) and what was fed last.  After
    an error the place where the next event begins is unknown: the decoder is of no more use.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer that hold no line end
        self._header: _Header | None = None

    def feed(self, data: bytes) -> None:
        """Bytes that came from the client."""
        self._buffer += data

    def next_event(self) -> Event | None:
        """The next complete event, if there is one.

        Raises InvalidRequest (what came is no event) or PayloadTooLarge.
        """
        if self._header is None:
            line = self._next_line()
            if line is None:
                return None
            self._header = self._parse_header(line)
        header = self._header
        if len(self._buffer) < header.data_length + header.payload_length:
            return None
        data = dict(header.data)
        if header.data_length:
            data.update(json_object(self._take(header.data_length), "the data of an event"))
        payload = self._take(header.payload_length) or None
        self._header = None
        return Event(type=header.type, data=data, payload=payload)

    def _next_line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._searched)
        self._searched = len(self._buffer) if end < 0 else 0
        if (len(self._buffer) if end < 0 else end) > self._max_bytes:
            raise self._too_large()
        return None if end < 0 else self._take(end + 1)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _parse_header(self, line: bytes) -> _Header:
        fields = json_object(line, "a line with the header of an event")
        kind = fields.get("type")
        if not isinstance(kind, str) or not kind:
            raise InvalidRequest("an event must have a type, a string", param="type")
        data = fields.get("data")
        if data is not None and not isinstance(data, dict):
            raise InvalidRequest("the data of an event must be a JSON object", param="data")
        data_length = _length(fields, "data_length")
        payload_length = _length(fields, "payload_length")
        if len(line) + data_length + payload_length > self._max_bytes:
            raise self._too_large()
        return _Header(kind, data or {}, data_length, payload_length)

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"an event may have {self._max_bytes} bytes in all")


def _length(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequest(f"{name} must be a whole number of bytes, 0 or more", param=name)
    return value


class _Data(BaseModel):
    """Data of an event from a client; fields that only later versions know are passed over."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class VoiceData(_Data):
    """Which voice is asked for; every field may be left out."""

    name: str | None = None
    language: str | None = None
    speaker: str | None = None


class StartData(_Data):
    """The data of `synthesize-start`."""

    voice: VoiceData | None = None
    text_format: Literal["text", "ssml"] | None = None


class SynthesizeData(StartData):
    """The data of `synthesize`."""

    text: str


class TextData(_Data):
    """The data of `synthesize-chunk`."""

    text: str


class PingData(_Data):
    """The data of `ping`."""

    text: str | None = None


_DataT = TypeVar("_DataT", bound=_Data)


def read_data(event: Event, model: type[_DataT]) -> _DataT:
    """The data of an event, checked.

    Raises InvalidRequest naming the event, the field, and what was expected.
    """
    return validated(model, event.data, what=event.type)


def speech_options(asked: StartData, info: BackendInfo) -> SpeechOptions:
    """How to speak what a client asks for.

    `name` may be a voice or the model, `speaker` a voice.  Both together must agree.  SSML is
    cleaned of its tags whatever the settings say.  Raises InvalidRequest.
    """
    wanted = asked.voice or VoiceData()
    model = info.name.casefold()
    named = [name for name in (wanted.name, wanted.speaker) if name and name.casefold() != model]
    if len({name.casefold() for name in named}) > 1:
        raise UnknownVoice(
            f"the voice {ascii(named[0])[:60]} has no speaker {ascii(named[1])[:60]}", param="voice"
        )
    return parse_options(
        {
            "voice": named[0] if named else None,
            "language": wanted.language or None,
            "clean": True if asked.text_format == "ssml" else None,
        }
    )


def info_event(info: BackendInfo) -> Event:
    """The answer to `describe`: one text-to-speech program with the voices there are.

    A model that cannot be told by name how to sound is one voice with the model's own name.
    """
    maker = _VOICE_MAKERS[info.source]
    languages = [_LANGUAGE_TAGS[name] for name in info.languages if name in _LANGUAGE_TAGS]
    voices = [
        TtsVoice(
            name=name,
            attribution=maker,
            installed=True,
            description=name,
            version=None,
            languages=languages,
        )
        for name in info.voices or (info.name,)
    ]
    program = TtsProgram(
        name=PROGRAM,
        attribution=_KAZEIA,
        installed=True,
        description=f"Kazeia: {info.description}",
        version=__version__,
        voices=voices,
        supports_synthesize_streaming=True,
    )
    return Info(tts=[program]).event()


def error_event(error: Exception) -> Event:
    """The `error` event for what went wrong; unplanned errors keep their details to the log."""
    body = error_body(error)["error"]
    code = "idle_timeout" if isinstance(error, IdleTimeout) else body["code"]
    return Error(text=body["message"], code=code).event()
