"""The `kazeia` command: `say` and `serve`, and the engine's tools beside them.

What is heavy is imported inside the commands, so that each starts quickly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from kazeia_server.backend import SynthesisBackend, SynthesisRequest, SynthesisStats
    from kazeia_server.settings import Settings

__all__ = ["app", "main"]

_BAD_INPUT = 2
_FAILED = 1
_INTERRUPTED = 130


class _Commands(TyperGroup):
    """Our own commands; the engine's are looked up only when one of them, or a list, is wanted."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in self._tools() if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        return own if own is not None else self._tools().get(cmd_name)

    def _tools(self) -> dict[str, Any]:
        from kazeia_server.engine import tool_app

        try:
            group = typer.main.get_group(tool_app())
        except (ImportError, OSError) as error:
            typer.echo(f"the engine's tools are not available: {error}", err=True)
            return {}
        return dict(group.commands)


app = typer.Typer(
    cls=_Commands,
    help="Kazeia: streaming text-to-speech on plain CPU cores.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from kazeia_server import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    pass


_Model = Annotated[
    Path | None,
    typer.Option("--model", help="Folder of a Qwen3-TTS model; without one the built-in voice."),
]
_Text = Annotated[str, typer.Argument(help='What to say; "-" reads it from standard input.')]


@app.command()
def say(
    text: _Text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help='WAV to write; "-" is standard output.')
    ] = None,
    play: Annotated[bool, typer.Option("--play", help="Play it while it is made.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print figures afterwards.")] = False,
    model: _Model = None,
    voice: Annotated[str | None, typer.Option("--voice", "--speaker", help="Voice name.")] = None,
    language: Annotated[str | None, typer.Option(help="Language name, code or auto.")] = None,
    instruct: Annotated[str | None, typer.Option(help="How to speak, in words.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same audio.")] = None,
    temperature: Annotated[float | None, typer.Option()] = None,
    top_k: Annotated[int | None, typer.Option()] = None,
    top_p: Annotated[float | None, typer.Option()] = None,
    repetition_penalty: Annotated[float | None, typer.Option()] = None,
    cp_temperature: Annotated[float | None, typer.Option()] = None,
    cp_top_k: Annotated[int | None, typer.Option()] = None,
    cp_top_p: Annotated[float | None, typer.Option()] = None,
    text_mode: Annotated[str | None, typer.Option(help="auto, whole or streaming.")] = None,
    max_frames: Annotated[int | None, typer.Option(help="At most so many frames of 80 ms.")] = None,
    chunk: Annotated[str | None, typer.Option(help="Frames a chunk: auto, 0 or K.")] = None,
    threads: Annotated[int | None, typer.Option(help="Engine threads.")] = None,
) -> None:
    """Speak TEXT into a WAV file, or aloud."""
    options: dict[str, Any] = {
        "voice": voice,
        "language": language,
        "instruct": instruct,
        "seed": seed,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "repetition_penalty": repetition_penalty,
        "cp_temperature": cp_temperature,
        "cp_top_k": cp_top_k,
        "cp_top_p": cp_top_p,
        "text_mode": text_mode,
        "max_frames": max_frames,
        "chunk": int(chunk) if chunk is not None and chunk.isdecimal() else chunk,
    }
    with _errors_as_exit_codes():
        if output is None and not play:
            _refuse("nothing to do: give -o FILE, or --play")
        settings = _settings(model=model, threads=threads)
        _speak(_read_text(text), options, settings, output, play=play, stats=stats)


@app.command()
def serve(
    model: _Model = None,
    host: Annotated[str | None, typer.Option(help="Address; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 8080 by default, 0 for any.")] = None,
    threads: Annotated[int | None, typer.Option(help="Engine threads.")] = None,
    max_concurrent: Annotated[int | None, typer.Option(help="Utterances made at once.")] = None,
    max_queue: Annotated[int | None, typer.Option(help="Utterances waiting for a slot.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning, error.")] = None,
) -> None:
    """Start the HTTP and WebSocket server.  Every KZTTS_* variable applies; flags win."""
    from kazeia_server.serving import run_server

    with _errors_as_exit_codes():
        settings = _settings(
            model=model,
            host=host,
            port=port,
            threads=threads,
            max_concurrent=max_concurrent,
            max_queue=max_queue,
            log_level=log_level,
        )
        run_server(settings)


def main() -> None:
    """Entry point."""
    app()


def _settings(**overrides: Any) -> Settings:
    from kazeia_server.settings import load_settings, unknown_variables

    for warning in unknown_variables(os.environ):
        typer.echo(f"warning: {warning}", err=True)
    return load_settings(**overrides)


def _read_text(text: str) -> str:
    if text != "-":
        return text
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(f"standard input is not UTF-8: {error.reason} at byte {error.start}")


def _speak(
    text: str,
    options: dict[str, Any],
    settings: Settings,
    output: Path | None,
    *,
    play: bool,
    stats: bool,
) -> None:
    from kazeia_server.audio import wav_header
    from kazeia_server.playback import open_player
    from kazeia_server.requests import build_request, check_request, check_text, parse_options
    from kazeia_server.service import load_voice

    to_stdout = output is not None and str(output) == "-"
    parsed = parse_options(options)
    check_text(text, settings)
    if output is not None and not to_stdout:
        if not output.parent.is_dir():
            _refuse(f"{output.parent} is not a folder: cannot write {output}")
        if output.is_dir():
            _refuse(f"{output} is a folder: expected the name of a WAV file")
    backend = load_voice(settings)
    try:
        info = backend.info
        request = check_request(build_request(text, parsed, settings), info, settings)
        name = f", voice {request.voice}" if request.voice else ""
        typer.echo(f"speaking: {info.description}{name}", err=to_stdout)
        player = open_player(info.sample_rate) if play else None
        parts: list[bytes] = []
        figures = _drive(backend, request, parts, player)
        if output is not None:
            data = wav_header(sum(map(len, parts)), info.sample_rate) + b"".join(parts)
            if to_stdout:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            else:
                output.write_bytes(data)
                typer.echo(f"wrote {output} ({figures.audio_s:.2f} s)")
        for warning in figures.warnings:
            typer.echo(f"warning: {warning}", err=True)
        if stats:
            _print_stats(figures, err=to_stdout)
    finally:
        backend.close()


def _drive(
    backend: SynthesisBackend, request: SynthesisRequest, parts: list[bytes], player: Any
) -> SynthesisStats:
    """Make the utterance, collecting PCM in `parts` and playing it if there is a player."""
    from kazeia_server.audio import pcm16

    stream = backend.open(request)
    try:
        while (chunk := stream.read()) is not None:
            pcm = pcm16(chunk.pcm)
            parts.append(pcm)
            if player is not None:
                player.write(pcm)
        if player is not None:
            player.close()
        return stream.stats
    except BaseException:
        stream.cancel()
        if player is not None:
            player.abort()
        raise
    finally:
        stream.close()


def _print_stats(figures: SynthesisStats, *, err: bool) -> None:
    def shown(value: float | None, unit: str) -> str:
        return "-" if value is None else f"{value:.3f}{unit}"

    lines = [
        f"first sound  {shown(figures.ttfb_s, ' s')}",
        f"rtf          {shown(figures.rtf, '')}",
        f"audio        {figures.audio_s:.3f} s",
        f"frames       {figures.frames}",
        f"chunks       {figures.n_chunks}",
        f"ended        {figures.ended}",
        *(f"{name:<12} {seconds:.3f} s" for name, seconds in figures.stages.items()),
    ]
    typer.echo("\n".join(lines), err=err)


@contextmanager
def _errors_as_exit_codes() -> Iterator[None]:
    """One line on standard error and an exit code, in place of a traceback."""
    from kazeia_server.errors import InvalidRequest, ServerError, VoiceLoadError

    try:
        yield
    except (InvalidRequest, VoiceLoadError) as error:
        _refuse(str(error))
    except (ServerError, OSError) as error:
        _refuse(str(error), _FAILED)
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


def _refuse(message: str, code: int = _BAD_INPUT) -> NoReturn:
    typer.echo("error: " + " ".join(message.split()), err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    main()
