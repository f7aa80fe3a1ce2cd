"""The engine's tools: convert, synth, validate, bench, tokenize, pull and doctor.

`kazeia_server.cli` offers these commands beside its own.  Heavy imports are made in the commands.
Exit codes: 0 all went well, 1 a check or the work failed, 2 the input was unusable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

if TYPE_CHECKING:
    from kazeia_engine.convert import ConvertReport

__all__ = ["app"]

_FAILED, _BAD_INPUT, _INTERRUPTED = 1, 2, 130

app = typer.Typer(
    help="Tools for Kazeia's models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

_ModelPath = Annotated[
    Path,
    typer.Option(
        "--model", envvar="KZTTS_MODEL", help="Folder with the two GGUF files, or the talker file."
    ),
]
_Threads = Annotated[int | None, typer.Option(help="Cores to use; all by default.")]
_Type = Annotated[
    str, typer.Option("--type", help="Weight type: f32, f16, bf16, q8_0, q6_k, q5_k, q4_k, ...")
]
_CpType = Annotated[
    str | None, typer.Option(help="Code predictor's type; by default --type, but at least q8_0.")
]
_DecoderType = Annotated[
    str | None, typer.Option(help="Decoder's type; by default f16 (f32 with --type f32).")
]


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="Official model folder (safetensors).")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the GGUF pair.")],
    type: _Type = "q8_0",
    cp_type: _CpType = None,
    decoder_type: _DecoderType = None,
) -> None:
    """Convert an official Qwen3-TTS folder into a pair of GGUF files."""
    from kazeia_engine.convert import convert as run

    with _errors_as_exit_codes(), _progress() as progress:
        report = run(
            source,
            output,
            type=type,
            cp_type=cp_type,
            decoder_type=decoder_type,
            progress=progress,
        )
    _report(report)


@app.command()
def synth(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the GGUF pair.")],
    size: Annotated[str, typer.Option(help="0.6b, 1.7b or tiny.")] = "0.6b",
    type: _Type = "q8_0",
    cp_type: _CpType = None,
    decoder_type: _DecoderType = None,
    seed: Annotated[int, typer.Option(help="Same seed, same files.")] = 0,
) -> None:
    """Write a model of random weights in the true shapes: noise, at the true speed."""
    from kazeia_engine.synth import synth as run

    with _errors_as_exit_codes(), _progress() as progress:
        report = run(
            output,
            size=size,
            type=type,
            cp_type=cp_type,
            decoder_type=decoder_type,
            seed=seed,
            progress=progress,
        )
    _report(report)


@app.command()
def validate(
    model: _ModelPath,
    frames: Annotated[int, typer.Option(help="Length of each run, 80 ms a frame.")] = 33,
    speaker: Annotated[str | None, typer.Option(help="Speaker of the runs.")] = None,
    threads: _Threads = None,
) -> None:
    """Check that caching, streaming, chunks and seeds change nothing.  Exit code 1 if they do."""
    from kazeia_engine.model import Model
    from kazeia_engine.validate import validate as run

    failed = 0
    with _errors_as_exit_codes(), Model.load(model, threads=threads) as loaded:
        for check in run(loaded, frames=frames, speaker=speaker):
            typer.echo(f"{'ok  ' if check.passed else 'FAIL'} {check.name}: {check.detail}")
            failed += not check.passed
    if failed:
        _refuse(f"{failed} checks failed", _FAILED)


@app.command()
def bench(
    model: _ModelPath,
    frames: Annotated[int, typer.Option(help="Length of every run, 80 ms a frame.")] = 64,
    chunk: Annotated[str, typer.Option(help="Frames a chunk: auto, 0 or K.")] = "auto",
    repeat: Annotated[int, typer.Option(help="Measured runs a chunk policy.")] = 3,
    threads: _Threads = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here.")
    ] = None,
) -> None:
    """Measure speed, time to first audio and memory."""
    from kazeia_engine.bench import bench as run

    with _errors_as_exit_codes():
        if chunk != "auto" and not chunk.isdecimal():
            _refuse(f"--chunk is {chunk!r}: expected auto, 0 or a number of frames")
        if json_file is not None and not json_file.absolute().parent.is_dir():
            _refuse(f"{json_file.parent} is not a folder: cannot write {json_file}")
        if json_file is not None and json_file.is_dir():
            _refuse(f"{json_file} is a folder: expected the name of a JSON file")
        figures = run(
            model,
            frames=frames,
            chunk=chunk if chunk == "auto" else int(chunk),
            repeat=repeat,
            threads=threads,
            log=_note,
        )
        if json_file is not None:
            json_file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    _show_bench(figures)


@app.command()
def tokenize(
    text: Annotated[str, typer.Argument(help="Text to tokenise.")],
    model: _ModelPath,
    check: Annotated[
        Path | None, typer.Option(help="JSON list of ids to compare with, exactly.")
    ] = None,
    raw: Annotated[bool, typer.Option(help="The text alone, without its envelope.")] = False,
) -> None:
    """Print the token ids of TEXT in its chat envelope, or compare them with known ones."""
    from kazeia_engine.tokenizer import Tokenizer

    with _errors_as_exit_codes():
        expected = None if check is None else _read_ids(check)
        with Tokenizer(model) as tokenizer:
            ids = tokenizer.encode(text) if raw else tokenizer.wrap(text)
            if expected is None:
                typer.echo(json.dumps(ids))
                return
            _compare_ids(ids, expected, lambda i: tokenizer.decode([i]))


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="0.6b-custom, 1.7b-base, ... or OWNER/NAME.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder; models/NAME by default.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
) -> None:
    """Download a model from the Hugging Face hub, resuming and verifying."""
    from kazeia_engine.pull import pull as run
    from kazeia_engine.pull import repository

    with _errors_as_exit_codes():
        folder = output or Path("models") / repository(name).split("/")[1].lower()
        pulled = run(name, folder, revision=revision, log=_note)
        typer.echo(f"{len(pulled.files)} files in {folder}, {len(pulled.verified)} verified")
        if not pulled.has_pair:
            typer.echo(f"next: kazeia convert {folder} -o {folder}-q8_0 --type q8_0")


@app.command()
def doctor() -> None:
    """Show what this machine has and which model could speak in real time on it."""
    from rich.table import Table

    from kazeia_engine.doctor import findings, outlooks

    console = _console()
    with _errors_as_exit_codes():
        found = findings()
        facts = Table(show_header=False, box=None)
        for finding in found:
            problem = "" if finding.ok else "PROBLEM: "
            facts.add_row(finding.what, problem + finding.value)
        console.print(facts)
        table = Table("model", "weights", "GB read a second", "best RTF", "real time?", box=None)
        for o in outlooks():
            table.add_row(
                o.model, o.formats, f"{o.gb_per_second:.1f}", f"{o.best_rtf:.2f}", o.verdict
            )
        console.print()
        console.print(table)
        console.print("best RTF: memory and arithmetic at their measured full speed.")
        console.print("`kazeia synth` and `kazeia bench` measure the true one without a download.")
    if not all(finding.ok for finding in found):
        raise typer.Exit(_FAILED)


def _console() -> Console:
    """For tables: as wide as the terminal, and not wrapped where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _report(report: ConvertReport) -> None:
    typer.echo(f"{report.talker} ({report.talker_bytes / 1e6:.1f} MB)")
    typer.echo(f"{report.codec} ({report.codec_bytes / 1e6:.1f} MB)")
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)


def _show_bench(figures: dict[str, Any]) -> None:
    from rich.table import Table

    console = _console()
    machine = figures["machine"]
    console.print(f"{figures['model']} on {machine['cpu']}, {machine['cores']} cores")
    policies = Table("chunk", "rtf", "first audio ms", "chunks", "total s", "codes", box=None)
    for p in figures["policies"].values():
        policies.add_row(
            str(p["chunk"]),
            f"{p['rtf']:.3f}",
            f"{p['ttfb_ms']:.0f}",
            str(p["n_chunks"]),
            f"{p['wall_s']:.2f}",
            p["fingerprint"],
        )
    console.print(policies)
    stages = Table("stage", "ms a frame", box=None)
    for name, ms in figures["stages_ms_per_frame"].items():
        stages.add_row(name, f"{ms:.2f}")
    console.print(stages)
    console.print(
        f"chunk 1 takes {figures['chunk1_over_chunk0']:.2f} times as long as chunk 0; peak memory "
        f"{figures['rss_mb']:.0f} MB, model {figures['model_mb']:.0f} MB, "
        f"loaded in {figures['load_s']:.2f} s"
    )


def _read_ids(path: Path) -> list[int]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as err:
        _refuse(f"{path} cannot be read as JSON: {err}")
    if isinstance(data, dict):
        data = data.get("ids")
    if not isinstance(data, list) or not all(type(i) is int for i in data):
        _refuse(f'{path}: expected a JSON list of token ids, or {{"ids": [...]}}')
    return data


def _compare_ids(ids: list[int], expected: list[int], piece: Callable[[int], str]) -> None:
    total = max(len(ids), len(expected))
    same = sum(a == b for a, b in zip(ids, expected, strict=False))
    typer.echo(f"{same}/{total} ids match")
    if ids == expected:
        return

    def shown(source: list[int], at: int) -> str:
        if at >= len(source):
            return "nothing"
        from kazeia_engine.errors import InvalidInput

        try:
            return f"{source[at]} {piece(source[at])!r}"
        except InvalidInput:
            return f"{source[at]}, which is no token"

    at = next(
        (i for i, (a, b) in enumerate(zip(ids, expected, strict=False)) if a != b),
        min(len(ids), len(expected)),
    )
    _refuse(
        f"first difference at position {at}: got {shown(ids, at)}, expected {shown(expected, at)}",
        _FAILED,
    )


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal, a line every tenth elsewhere; called with name, bytes done, all."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _tenths()
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    name_column = TextColumn("{task.description}")
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn(), name_column)
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=None)

        def update(name: str, done: int, total: int) -> None:
            bar.update(task, description=name, completed=done, total=total)

        yield update


def _tenths() -> Callable[[str, int, int], None]:
    last = -1

    def update(name: str, done: int, total: int) -> None:
        nonlocal last
        tenth = 10 * done // total if total else 10
        if tenth != last:
            last = tenth
            _note(f"{10 * tenth:3d} % {name}")

    return update


def _note(line: str) -> None:
    typer.echo(line, err=True)


@contextmanager
def _errors_as_exit_codes() -> Iterator[None]:
    """One line on standard error and an exit code, in place of a traceback."""
    from kazeia_engine.errors import InvalidInput, KazeiaError, ModelError

    try:
        yield
    except (InvalidInput, ModelError) as err:
        _refuse(str(err))
    except (KazeiaError, OSError, MemoryError) as err:
        _refuse(str(err) or type(err).__name__, _FAILED)
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


def _refuse(message: str, code: int = _BAD_INPUT) -> NoReturn:
    typer.echo("error: " + " ".join(message.split()), err=True)
    raise typer.Exit(code)
