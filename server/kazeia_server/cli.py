"""The `kazeia` command: `say`, `speak` and `serve`, and the engine's tools beside them.

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
    from kazeia_server.settings import Settings
    from kazeia_server.voices.backend import SynthesisStats

__all__ = ["app", "main"]

_BAD_INPUT = 2
_FAILED = 1
_INTERRUPTED = 130
_WITHOUT_NUMPY = ("speak",)


class _Commands(TyperGroup):
    """Our own commands; the engine's are looked up only when one of them, or a list, is wanted."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in self._tools() if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        return own if own is not None else self._tools().get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        found = super().resolve_command(ctx, args)
        if found[0] not in _WITHOUT_NUMPY:
            _require_processor()
        return found

    def _tools(self) -> dict[str, Any]:
        try:
            from kazeia_engine.tools.cli import app as tools
        except (ImportError, OSError) as error:
            typer.echo(f"the engine's tools are not available: {error}", err=True)
            return {}
        return dict(typer.main.get_group(tools).commands)


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
_Device = Annotated[
    str | None,
    typer.Option("--device", help="Device of every part: cpu, auto or a name of `kazeia doctor`."),
]
_DeviceTalker = Annotated[str | None, typer.Option("--device-talker", help="Device of the talker.")]
_DeviceCp = Annotated[str | None, typer.Option("--device-cp", help="Device of the code predictor.")]
_DeviceDecoder = Annotated[
    str | None, typer.Option("--device-decoder", help="Device of the decoder.")
]
_MaxRows = Annotated[
    int | None,
    typer.Option("--max-rows", help="Most rows of a product on a device, 64 or more; 0: any."),
]
_Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help='File to write; "-": WAV on standard output.'),
]
_Text = Annotated[str, typer.Argument(help='What to say; "-" reads it from standard input.')]


@app.command()
def say(
    text: _Text,
    output: _Output = None,
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
    speed: Annotated[float | None, typer.Option(help="Tempo, 0.25 to 4; the pitch stays.")] = None,
    clean: Annotated[
        bool | None, typer.Option(help="Make markup and addresses speakable (the default).")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Pieces of a text: auto, sentence or none.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Engine threads.")] = None,
    device: _Device = None,
    device_talker: _DeviceTalker = None,
    device_cp: _DeviceCp = None,
    device_decoder: _DeviceDecoder = None,
    max_rows: _MaxRows = None,
) -> None:
    """Speak TEXT into a file (wav, mp3, opus, aac, flac or pcm, by its suffix), or aloud."""
    from kazeia_server.say import say as speak_into

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
        "speed": speed,
        "clean": clean,
        "split": split,
    }
    with _errors_as_exit_codes():
        if output is None and not play:
            _refuse("nothing to do: give -o FILE, or --play")
        devices = _devices(device, device_talker, device_cp, device_decoder)
        settings = _settings(model=model, threads=threads, max_rows=max_rows, **devices)
        err = output is not None and str(output) == "-"
        figures = speak_into(
            _read_text(text),
            options,
            settings,
            output,
            play=play,
            tell=lambda line: typer.echo(line, err=err),
        )
        for warning in figures.warnings:
            typer.echo(f"warning: {warning}", err=True)
        if stats:
            _print_stats(figures, err=err)


@app.command()
def speak(
    text: Annotated[
        str, typer.Argument(help='What to say; "-": standard input, spoken while it comes.')
    ],
    output: _Output = None,
    play: Annotated[bool, typer.Option("--play", help="Play it while it is made.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print figures afterwards.")] = False,
    url: Annotated[
        str | None, typer.Option(help="The server; KAZEIA_URL, or http://127.0.0.1:8080.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="KAZEIA_API_KEY hides it better.")] = None,
    voice: Annotated[str | None, typer.Option("--voice", "--speaker", help="Voice name.")] = None,
    language: Annotated[str | None, typer.Option(help="Language name, code or auto.")] = None,
    instruct: Annotated[str | None, typer.Option(help="How to speak, in words.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same audio.")] = None,
    speed: Annotated[float | None, typer.Option(help="Tempo, 0.25 to 4; the pitch stays.")] = None,
    wait: Annotated[
        float, typer.Option(help="Seconds for a server that starts or is busy.")
    ] = 30.0,
) -> None:
    """Have a running server speak TEXT: `llm | kazeia speak - --play`."""
    from kazeia_client.cli import exit_code_of, speak_command
    from kazeia_client.options import SpeechOptions
    from kazeia_client.speaking import SpeakOrder

    options = SpeechOptions(
        voice=voice, language=language, instruct=instruct, seed=seed, speed=speed
    )
    order = SpeakOrder(text, output, play, options, url, api_key, wait)
    raise typer.Exit(exit_code_of(lambda: speak_command(order, stats=stats)))


@app.command()
def serve(
    model: _Model = None,
    host: Annotated[str | None, typer.Option(help="Address; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 8080 by default, 0 for any.")] = None,
    wyoming_port: Annotated[
        str | None, typer.Option(help='Port of Wyoming; 10200 by default, "off" for none.')
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Key that clients need; repeatable.  KZTTS_API_KEYS hides it better."),
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Web origin that may use it; repeatable; * for any.")
    ] = None,
    root_path: Annotated[str | None, typer.Option(help="Path prefix given by a proxy.")] = None,
    threads: Annotated[int | None, typer.Option(help="Engine threads.")] = None,
    device: _Device = None,
    device_talker: _DeviceTalker = None,
    device_cp: _DeviceCp = None,
    device_decoder: _DeviceDecoder = None,
    max_rows: _MaxRows = None,
    max_concurrent: Annotated[int | None, typer.Option(help="Utterances made at once.")] = None,
    max_queue: Annotated[int | None, typer.Option(help="Utterances waiting for a slot.")] = None,
    max_sessions: Annotated[
        int | None, typer.Option(help="WebSockets and Wyoming connections open at once.")
    ] = None,
    shutdown_timeout: Annotated[
        int | None, typer.Option(help="Seconds in which speech may end at shutdown.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning, error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json.")] = None,
) -> None:
    """Start the server with all its doors.  Every KZTTS_* variable applies; flags win."""
    from kazeia_server.serving import run_server

    with _errors_as_exit_codes():
        if api_key and not all(key.strip() for key in api_key):
            _refuse("--api-key is empty: expected a key")
        settings = _settings(
            model=model,
            host=host,
            port=port,
            wyoming_port=wyoming_port,
            api_keys=",".join(api_key) if api_key else None,
            cors_origins=",".join(cors_origin) if cors_origin else None,
            root_path=root_path,
            threads=threads,
            **_devices(device, device_talker, device_cp, device_decoder),
            max_rows=max_rows,
            max_concurrent=max_concurrent,
            max_queue=max_queue,
            max_sessions=max_sessions,
            shutdown_timeout_s=shutdown_timeout,
            log_level=log_level,
            log_format=log_format,
        )
        run_server(settings)


def _require_processor() -> None:
    from kazeia_engine.processor import require_processor

    try:
        require_processor()
    except ImportError as error:
        _refuse(str(error))


def main() -> None:
    """Entry point."""
    app()


def _settings(**overrides: Any) -> Settings:
    from kazeia_server.settings import load_settings, unknown_variables

    for warning in unknown_variables(os.environ):
        typer.echo(f"warning: {warning}", err=True)
    return load_settings(**overrides)


def _devices(
    every: str | None, talker: str | None, cp: str | None, decoder: str | None
) -> dict[str, str | None]:
    """Settings of the flags: one device for every part, and one for each, which wins."""
    return {
        "device_talker": every if talker is None else talker,
        "device_cp": every if cp is None else cp,
        "device_decoder": every if decoder is None else decoder,
    }


def _read_text(text: str) -> str:
    if text != "-":
        return text
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(f"standard input is not UTF-8: {error.reason} at byte {error.start}")


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
