"""What a protocol over a WebSocket decides, and what it is told: the two sides of `socket`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kazeia_server.errors import ServerError
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.voices.backend import BackendInfo, SynthesisStats

__all__ = [
    "Action",
    "Begin",
    "Close",
    "Drop",
    "End",
    "Flush",
    "Push",
    "SendAudio",
    "SendMessage",
    "SocketProtocol",
]


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send this object as a JSON text frame."""

    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SendAudio:
    """Send these bytes as a binary frame."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin an utterance, once the utterance `after` has ended (None: now); its text comes later.

    With text_mode "whole" it begins when its text is complete.
    """

    index: int
    request: SynthesisRequest
    after: int | None


@dataclass(frozen=True, slots=True)
class Push:
    """Append text to an utterance."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Flush:
    """Speak all text of an utterance so far; what follows begins a new piece."""

    index: int


@dataclass(frozen=True, slots=True)
class End:
    """The text of an utterance is complete."""

    index: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Cancel an utterance; events of it that still come in are ignored."""

    index: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close the WebSocket; whatever is still being spoken is cancelled with it."""

    code: int
    reason: str


Action = SendMessage | SendAudio | Begin | Push | Flush | End | Drop | Close


class SocketProtocol(Protocol):
    """A protocol without I/O.

    Each call returns what is to be done, in order.  `now` is any clock in seconds that never
    goes back.
    """

    @property
    def frame_bytes(self) -> int:
        """Most bytes of audio in one message, so that a cancel can cut in."""

    def receive_text(self, data: str, now: float) -> list[Action]:
        """A text frame of the client."""

    def receive_bytes(self, size: int, now: float) -> list[Action]:
        """A binary frame of `size` bytes of the client."""

    def begun(self, index: int, info: BackendInfo, voice: str | None) -> list[Action]:
        """Utterance `index` has its slot, and is spoken by `voice` of `info`."""

    def audio(self, index: int, data: bytes) -> list[Action]:
        """Audio of utterance `index`, in the format it asked for."""

    def ended(self, index: int, stats: SynthesisStats, now: float) -> list[Action]:
        """Utterance `index` has come to its end."""

    def failed(self, index: int, error: Exception, now: float) -> list[Action]:
        """Utterance `index` could not be made, or not to its end."""

    def tick(self, now: float) -> list[Action]:
        """Time passes; called about once a second."""

    def leave(self) -> list[Action]:
        """The server goes away: what was asked for may end."""

    def refuse(self, error: ServerError) -> list[Action]:
        """The server does not serve this connection."""
