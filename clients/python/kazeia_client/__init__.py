"""Client of Kazeia, the streaming text-to-speech server.

    from kazeia_client import Client

    with Client() as client:
        client.synthesize("Hello.").save("hello.wav")
        with client.stream("Hello again.") as speech:
            for pcm in speech:
                ...

`AsyncClient` is the same for asyncio.
"""

from __future__ import annotations

from kazeia_client.async_client import AsyncClient, AsyncSpeechStream
from kazeia_client.async_session import AsyncSession, AsyncUtterance
from kazeia_client.errors import (
    AnswerTimeout,
    ApiError,
    Busy,
    ConnectionFailed,
    ConnectionLost,
    InvalidRequest,
    KazeiaError,
    Loading,
    PlaybackError,
    ServerFailure,
    ShuttingDown,
    TextTimeout,
    TextTooLong,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    UnknownLanguage,
    UnknownVoice,
    UsageError,
    VoiceFailed,
)
from kazeia_client.formats import AudioFormat
from kazeia_client.options import SpeechOptions
from kazeia_client.playback import Player
from kazeia_client.protocol import Audio, Cancelled, Finished, SpeechEvent, Started
from kazeia_client.retry import Retry
from kazeia_client.speech import Speech, SpeechStats
from kazeia_client.status import Health, Voice, Voices
from kazeia_client.sync_client import Client, Session, SpeechStream, Utterance
from kazeia_client.version import __version__
from kazeia_client.wav import WavWriter

__all__ = [
    "AnswerTimeout",
    "ApiError",
    "AsyncClient",
    "AsyncSession",
    "AsyncSpeechStream",
    "AsyncUtterance",
    "Audio",
    "AudioFormat",
    "Busy",
    "Cancelled",
    "Client",
    "ConnectionFailed",
    "ConnectionLost",
    "Finished",
    "Health",
    "InvalidRequest",
    "KazeiaError",
    "Loading",
    "PlaybackError",
    "Player",
    "Retry",
    "ServerFailure",
    "Session",
    "ShuttingDown",
    "Speech",
    "SpeechEvent",
    "SpeechOptions",
    "SpeechStats",
    "SpeechStream",
    "Started",
    "TextTimeout",
    "TextTooLong",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "UnknownLanguage",
    "UnknownVoice",
    "UsageError",
    "Utterance",
    "Voice",
    "VoiceFailed",
    "Voices",
    "WavWriter",
    "__version__",
]
