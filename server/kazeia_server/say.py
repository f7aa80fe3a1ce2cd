"""`kazeia say`: an utterance into a file, or aloud, without a server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from kazeia_client.errors import PlaybackError, UsageError
from kazeia_client.formats import AudioFormat, format_of_file
from kazeia_client.playback import Player
from kazeia_server.audio.encode import open_encoder
from kazeia_server.audio.formats import FormatName, OutputFormat
from kazeia_server.audio.pcm import wav_header
from kazeia_server.doors.fields import parse_options
from kazeia_server.errors import InvalidRequest
from kazeia_server.settings import Settings
from kazeia_server.synthesis.check import check_request, check_text
from kazeia_server.synthesis.pieces import TextFront, WholeText
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.synthesis.speaker import Speaker
from kazeia_server.voices.backend import SynthesisBackend, SynthesisStats
from kazeia_server.voices.load import load_voice

__all__ = ["say"]


def say(
    text: str,
    options: dict[str, Any],
    settings: Settings,
    output: Path | None,
    *,
    play: bool,
    tell: Callable[[str], None],
) -> SynthesisStats:
    """Speak `text` into `output` ("-": standard output) and, if `play`, aloud.

    The suffix of `output` chooses its format.  `tell` gets one line for people now and then.
    Raises InvalidRequest, VoiceLoadError, EngineFailure or OSError.
    """
    parsed = parse_options(options)
    check_text(text, settings)
    try:
        wanted = format_of_file(output)
        with closing(load_voice(settings)) as backend:
            info = backend.info
            request = check_request(parsed.request(text, settings), info, settings)
            name = f", voice {request.voice}" if request.voice else ""
            tell(f"speaking: {info.description}{name}")
            player = None
            if play:
                # Somebody who asked for a file too gets that, whatever the loudspeaker does.
                format = AudioFormat("pcm", info.sample_rate)
                player = Player(format, warn=tell if output is not None else None)
            pcm, stats = _make(backend, request, settings, player)
            if output is not None:
                _write(output, _encoded(pcm, wanted, info.sample_rate))
                if str(output) != "-":
                    tell(f"wrote {output} ({stats.audio_s:.2f} s)")
            return stats
    except (UsageError, PlaybackError) as error:
        raise InvalidRequest(str(error)) from error


def _make(
    backend: SynthesisBackend,
    request: SynthesisRequest,
    settings: Settings,
    player: Player | None,
) -> tuple[bytes, SynthesisStats]:
    """The utterance as PCM, played meanwhile if there is a player."""
    front = TextFront(
        backend.info,
        clean=request.clean,
        split=request.split,
        language=request.language,
        live=False,
    )
    source = WholeText(request.text, front)
    speaker = Speaker(backend, request, source, settings, live=False, hold=player is None)
    parts = []
    try:
        with player or nullcontext():
            for pcm in speaker:
                parts.append(pcm)
                if player is not None:
                    player.write(pcm)
    except BaseException:
        speaker.cancel()
        raise
    return b"".join(parts), speaker.stats


def _encoded(pcm: bytes, name: FormatName, sample_rate: int) -> bytes:
    if name == "pcm":
        return pcm
    if name == "wav":
        return wav_header(len(pcm), sample_rate) + pcm
    encoder = open_encoder(OutputFormat(name), sample_rate)
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32767)
    return encoder.feed(samples) + encoder.finish()


def _write(output: Path, data: bytes) -> None:
    if str(output) == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        output.write_bytes(data)
