"""The `kazeia-client` command: speech of a server into a file or aloud, its voices, its health."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kazeia_client.address import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE
from kazeia_client.errors import InvalidRequest, KazeiaError, Unauthorized, UsageError
from kazeia_client.options import SpeechOptions
from kazeia_client.speaking import SpeakOrder, open_client, speak
from kazeia_client.speech import SpeechStats
from kazeia_client.version import __version__

__all__ = ["exit_code_of", "main", "speak_command"]

_FAILED = 1
_BAD_INPUT = 2
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.  Returns 0 done, 1 failed, 2 unusable input, 130 interrupted."""
    parsed = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], None] = parsed.command
    return exit_code_of(lambda: command(parsed))


def exit_code_of(command: Callable[[], None]) -> int:
    """Run `command`; an error is one line on standard error."""
    try:
        command()
    except Unauthorized as error:
        return _complain(f"{error}; give it with --api-key or in {KEY_VARIABLE}", _FAILED)
    except (UsageError, InvalidRequest) as error:
        return _complain(error, _BAD_INPUT)
    except BrokenPipeError:  # whoever read standard output has left; what is buffered has no reader
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except (KazeiaError, OSError) as error:
        return _complain(error, _FAILED)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def speak_command(order: SpeakOrder, *, stats: bool) -> None:
    """Speak, and tell people how it goes on standard error, figures included if `stats`.

    Raises KazeiaError, OSError.
    """
    figures = speak(order, _tell)
    if stats:
        _tell(_shown(figures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kazeia-client", description="Speech of a Kazeia server.")
    parser.add_argument("--version", action="version", version=__version__)
    server = argparse.ArgumentParser(add_help=False)
    server.add_argument("--url", help=f"the server; {URL_VARIABLE}, or {DEFAULT_URL}")
    server.add_argument("--api-key", help=f"{KEY_VARIABLE} hides it better")
    server.add_argument(
        "--wait",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="for a server that starts or is busy; 30",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_speak(commands.add_parser("speak", parents=[server], help="speak TEXT"))
    for name, command, what in (
        ("voices", _voices, "the voices and languages there are"),
        ("health", _health, "the state of the server"),
    ):
        listing = commands.add_parser(name, parents=[server], help=what)
        listing.add_argument("--json", action="store_true", help="for programs")
        listing.set_defaults(command=command)
    return parser


def _add_speak(parser: argparse.ArgumentParser) -> None:
    parser.description = "Speak TEXT into a file, or aloud, while it is made."
    parser.add_argument("text", help='what to say; "-": standard input, spoken while it comes')
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        help="file (wav, mp3, opus, ogg, aac, flac, pcm, raw, by its suffix); "
        '"-": WAV on standard output',
    )
    parser.add_argument("--play", action="store_true", help="play it while it is made")
    parser.add_argument("--stats", action="store_true", help="print figures afterwards")
    for name, kind, what in (
        ("voice", str, "a name that `voices` lists"),
        ("language", str, "a name, a code, or auto"),
        ("instruct", str, "how to speak, in words"),
        ("seed", int, "same seed, same audio"),
        ("speed", float, "tempo, 0.25 to 4; the pitch stays"),
        ("temperature", float, None),
        ("top-k", int, None),
        ("top-p", float, None),
        ("repetition-penalty", float, None),
        ("cp-temperature", float, None),
        ("cp-top-k", int, None),
        ("cp-top-p", float, None),
        ("text-mode", str, "auto, whole or streaming"),
        ("max-frames", int, "at most so many frames of 80 ms"),
        ("chunk", _chunk, "frames a chunk: auto, 0 (all at the end) or a number"),
        ("split", str, "pieces of a text: auto, sentence or none"),
        ("sample-rate", int, "Hz"),
    ):
        parser.add_argument(f"--{name}", type=kind, help=what)
    parser.add_argument(
        "--clean",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="make markup and addresses speakable, as is the default",
    )
    parser.set_defaults(command=_speak)


def _speak(arguments: argparse.Namespace) -> None:
    options: Any = {
        name: getattr(arguments, name)
        for name in SpeechOptions.__annotations__
        if hasattr(arguments, name)
    }
    order = SpeakOrder(
        text=arguments.text,
        output=arguments.output,
        play=arguments.play,
        options=options,
        url=arguments.url,
        key=arguments.api_key,
        wait_s=arguments.wait,
    )
    speak_command(order, stats=arguments.stats)


def _voices(arguments: argparse.Namespace) -> None:
    with open_client(arguments.url, arguments.api_key, arguments.wait, _tell) as client:
        found = client.voices()
    if arguments.json:
        _say(json.dumps(dataclasses.asdict(found), ensure_ascii=False, indent=2))
        return
    _say(f"{found.model} ({found.source}, {found.sample_rate} Hz)")
    for voice in found.voices:
        _say(f"  {voice.name}{' (default)' if voice.default else ''}")
    _say(f"languages: {', '.join(found.languages)}")


def _health(arguments: argparse.Namespace) -> None:
    with open_client(arguments.url, arguments.api_key, arguments.wait, _tell) as client:
        found = client.health()
    if arguments.json:
        _say(json.dumps(dataclasses.asdict(found), ensure_ascii=False, indent=2))
        return
    model = f", {found.model}" if found.model else ""
    _say(f"{found.state}: version {found.version}, {found.source}{model}")
    _say(f"{found.running} running, {found.waiting} waiting")
    if found.failure is not None:
        _say(found.failure)


def _chunk(value: str) -> int | str:
    return int(value) if value.isdecimal() else value


def _shown(stats: SpeechStats) -> str:
    def seconds(value: float | None, unit: str = " s") -> str:
        return "-" if value is None else f"{value:.3f}{unit}"

    return "\n".join(
        (
            f"first sound  {seconds(stats.ttfb_s)}",
            f"rtf          {seconds(stats.rtf, '')}",
            f"audio        {seconds(stats.audio_s)}",
            f"frames       {stats.frames}",
            f"chunks       {stats.chunks}",
            f"ended        {stats.ended}",
        )
    )


def _say(line: str) -> None:
    if sys.stdout is None:
        raise UsageError("standard output is closed: expected somewhere to write to")
    sys.stdout.write(_showable(line, sys.stdout.encoding) + "\n")


def _tell(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(_showable(line, sys.stderr.encoding) + "\n")
        sys.stderr.flush()


def _showable(line: str, encoding: str | None) -> str:
    """`line` without what would command the terminal, in characters that it has.

    Names and messages are the server's.
    """
    kept = "".join(c for c in line if c in "\n\t" or unicodedata.category(c) != "Cc")
    encoding = encoding or "utf-8"
    return kept.encode(encoding, "backslashreplace").decode(encoding)


def _complain(error: object, code: int) -> int:
    _tell("error: " + " ".join(str(error).split()))
    return code
