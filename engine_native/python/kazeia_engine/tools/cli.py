"""The engine's tools: convert, synth, quantize, validate, quality, bench, tokenize, pull, doctor.

`kazeia_server.cli` offers these commands beside its own.  Heavy imports are made in the commands.
Exit codes: 0 all went well, 1 a check or the work failed, 2 the input was unusable.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from kazeia_engine.tools.terminal import (
    FAILED,
    bytes_progress,
    check_json_target,
    console_for_tables,
    errors_as_exit_codes,
    note,
    refuse,
    tenths,
    write_json,
)

if TYPE_CHECKING:
    from kazeia_engine.tools.gguf_writing import WrittenPair

__all__ = ["app"]


app = typer.Typer(
    help="Tools for Kazeia's models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def _folder(value: str) -> Path:
    if not value:  # a Path would make the present folder of it
        raise typer.BadParameter("it is empty: expected a folder")
    return Path(value)


_Output = Annotated[
    Path,
    typer.Option(
        "-o", "--output", parser=_folder, metavar="PATH", help="Folder for the GGUF pair."
    ),
]
_ModelPath = Annotated[
    Path,
    typer.Option(
        "--model", envvar="KZTTS_MODEL", help="Folder with the two GGUF files, or the talker file."
    ),
]
_Threads = Annotated[int | None, typer.Option(help="Cores to use; all by default.")]
_Device = Annotated[
    str | None,
    typer.Option("--device", help="Device of every part: cpu, auto or a name of `kazeia doctor`."),
]
_DeviceTalker = Annotated[
    str | None,
    typer.Option("--device-talker", envvar="KZTTS_DEVICE_TALKER", help="Device of the talker."),
]
_DeviceCp = Annotated[
    str | None,
    typer.Option("--device-cp", envvar="KZTTS_DEVICE_CP", help="Device of the code predictor."),
]
_DeviceDecoder = Annotated[
    str | None,
    typer.Option("--device-decoder", envvar="KZTTS_DEVICE_DECODER", help="Device of the decoder."),
]
_MaxRows = Annotated[
    int | None,
    typer.Option(
        "--max-rows",
        envvar="KZTTS_MAX_ROWS",
        help="Most rows of a product on a device, 64 or more; 0: any.",
    ),
]
_TYPES = "Weight type: f32, f16, bf16, q8_0, q4_0; q6_k, q5_k, q4_k, ... run more slowly."
_Type = Annotated[str, typer.Option("--type", help=_TYPES)]
_TalkerType = Annotated[
    str | None, typer.Option("--talker", help="Talker's type; by default --type.")
]
_CpType = Annotated[
    str | None,
    typer.Option("--cp", help="Code predictor's type; by default --type, but at least q8_0."),
]
_DecoderType = Annotated[
    str | None, typer.Option("--decoder", help="Decoder's type; by default f16, with f32 f32.")
]


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="Official model folder (safetensors).")],
    output: _Output,
    type: _Type = "q8_0",
    talker_type: _TalkerType = None,
    cp_type: _CpType = None,
    decoder_type: _DecoderType = None,
) -> None:
    """Convert an official Qwen3-TTS folder into a pair of GGUF files."""
    from kazeia_engine.tools.convert import convert as run

    with errors_as_exit_codes(), bytes_progress() as progress:
        report = run(
            source,
            output,
            type=type,
            talker_type=talker_type,
            cp_type=cp_type,
            decoder_type=decoder_type,
            progress=progress,
        )
    _report(report)


@app.command()
def synth(
    output: _Output,
    size: Annotated[str, typer.Option(help="0.6b, 1.7b or tiny.")] = "0.6b",
    type: _Type = "q8_0",
    talker_type: _TalkerType = None,
    cp_type: _CpType = None,
    decoder_type: _DecoderType = None,
    seed: Annotated[int, typer.Option(help="Same seed, same files.")] = 0,
) -> None:
    """Write a model of random weights in the true shapes: noise, at the true speed."""
    from kazeia_engine.tools.synth import synth as run

    with errors_as_exit_codes(), bytes_progress() as progress:
        report = run(
            output,
            size=size,
            type=type,
            talker_type=talker_type,
            cp_type=cp_type,
            decoder_type=decoder_type,
            seed=seed,
            progress=progress,
        )
    _report(report)


@app.command()
def quantize(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Folder with the GGUF pair.")],
    output: Annotated[
        Path, typer.Argument(parser=_folder, metavar="OUT", help="Folder for the new pair.")
    ],
    talker_type: Annotated[
        str | None, typer.Option("--talker", help="f32, f16, bf16, q8_0 or q4_0; else copied.")
    ] = None,
    cp_type: Annotated[
        str | None, typer.Option("--cp", help="Code predictor: the same types; else copied.")
    ] = None,
    decoder_type: Annotated[
        str | None, typer.Option("--decoder", help="f32 or f16; else copied.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Write over files of the same names.")] = False,
) -> None:
    """Write a GGUF pair in other weight types, part by part."""
    from kazeia_engine.tools.quantize import quantize as run

    with errors_as_exit_codes(), bytes_progress() as progress:
        report = run(
            source,
            output,
            talker_type=talker_type,
            cp_type=cp_type,
            decoder_type=decoder_type,
            force=force,
            progress=progress,
        )
    _report(report)


@app.command()
def validate(
    model: _ModelPath,
    frames: Annotated[int, typer.Option(help="Length of each run, 80 ms a frame.")] = 33,
    speaker: Annotated[str | None, typer.Option(help="Speaker of the runs.")] = None,
    threads: _Threads = None,
    device: _Device = None,
    device_talker: _DeviceTalker = None,
    device_cp: _DeviceCp = None,
    device_decoder: _DeviceDecoder = None,
    max_rows: _MaxRows = None,
) -> None:
    """Check that caching, streaming, chunks and seeds change nothing.  Exit code 1 if they do."""
    from kazeia_engine.devices import named
    from kazeia_engine.model import Model
    from kazeia_engine.tools.validate import validate as run

    failed = 0
    with errors_as_exit_codes():
        devices = named(
            device, talker=device_talker, cp=device_cp, decoder=device_decoder, max_rows=max_rows
        )
        with Model.load(model, threads=threads, devices=devices) as loaded:
            for check in run(loaded, frames=frames, speaker=speaker):
                typer.echo(f"{'ok  ' if check.passed else 'FAIL'} {check.name}: {check.detail}")
                failed += not check.passed
    if failed:
        refuse(f"{failed} checks failed", FAILED)


@app.command()
def quality(
    model: _ModelPath,
    reference: Annotated[Path, typer.Option(help="The same model in a better format.")],
    frames: Annotated[int, typer.Option(help="Frames of each text, and of the decoder.")] = 32,
    speaker: Annotated[str | None, typer.Option(help="Speaker of the texts.")] = None,
    as_stored: Annotated[
        bool, typer.Option("--as-stored", help="Compute the reference in its own format, not f32.")
    ] = False,
    min_snr: Annotated[float, typer.Option(help="Gate: dB of the decoder's audio.")] = 35.0,
    min_talker: Annotated[
        float | None, typer.Option(help="Gate: agreement, 0..1; 0.95 at 8 bits, 0.80 below.")
    ] = None,
    min_cp: Annotated[
        float | None, typer.Option(help="Gate: agreement, 0..1; 0.75 at 8 bits, 0.40 below.")
    ] = None,
    threads: _Threads = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here.")
    ] = None,
) -> None:
    """Compare a quantised model with its reference.  Exit code 1 below the gate."""
    from kazeia_engine.tools.quality import Limits
    from kazeia_engine.tools.quality import quality as run

    check_json_target(json_file)
    with errors_as_exit_codes():
        figures = run(
            model,
            reference,
            frames=frames,
            speaker=speaker,
            threads=threads,
            precision="auto" if as_stored else "f32",
            limits=Limits(min_snr, min_talker, min_cp),
            log=note,
        )
        _show_quality(figures)
        write_json(json_file, figures)
    if figures["failures"]:
        refuse("below the gate: " + "; ".join(figures["failures"]), FAILED)


@app.command()
def bench(
    model: Annotated[
        Path | None,
        typer.Option("--model", envvar="KZTTS_MODEL", help="Folder with the two GGUF files."),
    ] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(help="In place of a model: random weights of a size, 0.6b, 1.7b or tiny."),
    ] = None,
    type: Annotated[
        str | None, typer.Option("--type", help="Of --synthetic, q8_0 by default: f32, f16, ...")
    ] = None,
    frames: Annotated[
        int | None, typer.Option(help="Length of a run, 80 ms a frame; 64, synthetic 24.")
    ] = None,
    chunk: Annotated[str, typer.Option(help="Frames a chunk: auto, 0 or K.")] = "auto",
    repeat: Annotated[
        int | None, typer.Option(help="Measured runs of everything; 3, synthetic 1.")
    ] = None,
    threads: _Threads = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="The same through llama.cpp, in turn.")
    ] = False,
    busy: Annotated[int, typer.Option(help="How much slower beside so many busy processes.")] = 0,
    device: _Device = None,
    device_talker: _DeviceTalker = None,
    device_cp: _DeviceCp = None,
    device_decoder: _DeviceDecoder = None,
    max_rows: _MaxRows = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here.")
    ] = None,
) -> None:
    """Measure the machine, then speed, time to first audio and memory of a model on it.

    The model of --synthetic is written to a temporary folder and removed.
    """
    from kazeia_engine.devices import named
    from kazeia_engine.tools.bench import Settings, bench_synthetic
    from kazeia_engine.tools.bench import bench as run
    from kazeia_engine.tools.bench.tables import progress, show

    if chunk != "auto" and not chunk.isdecimal():
        refuse(f"--chunk is {chunk!r}: expected auto, 0 or a number of frames")
    if type is not None and synthetic is None:
        refuse("--type is that of --synthetic: the weights of a model are what its files hold")
    check_json_target(json_file)
    with errors_as_exit_codes():
        settings = Settings(
            frames=frames if frames is not None else 24 if synthetic else 64,
            chunk=chunk if chunk == "auto" else int(chunk),
            repeat=repeat if repeat is not None else 1 if synthetic else 3,
            threads=threads,
            compare=compare,
            busy=busy,
            devices=named(
                device,
                talker=device_talker,
                cp=device_cp,
                decoder=device_decoder,
                max_rows=max_rows,
            ),
        )
        with progress(Console(stderr=True), note) as (log, step):
            if synthetic is not None:
                figures = bench_synthetic(
                    synthetic,
                    settings,
                    type=type or "q8_0",
                    log=log,
                    step=step,
                    progress=tenths(log),
                )
            elif model is not None:
                figures = run(model, settings, log=log, step=step)
            else:
                refuse("bench needs --model DIR, or --synthetic 0.6b to try without a model")
        show(console_for_tables(), figures)
        write_json(json_file, figures)
    if "error" in (figures["compare"] or {}):
        refuse(figures["compare"]["error"], FAILED)


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

    with errors_as_exit_codes():
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
        Path | None,
        typer.Option(
            "-o",
            "--output",
            parser=_folder,
            metavar="PATH",
            help="Folder; models/NAME by default.",
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
) -> None:
    """Download a model from the Hugging Face hub, resuming and verifying."""
    from kazeia_engine.tools.pull import pull as run
    from kazeia_engine.tools.pull import repository

    with errors_as_exit_codes():
        folder = output or Path("models") / repository(name).split("/")[1].lower()
        pulled = run(name, folder, revision=revision, log=note)
        typer.echo(f"{len(pulled.files)} files in {folder}, {len(pulled.verified)} verified")
        if not pulled.has_pair:
            typer.echo(f"next: kazeia convert {folder} -o {folder}-q8_0 --type q8_0")


@app.command()
def doctor(
    placement: Annotated[
        bool, typer.Option("--placement", help="In place of it: what of --model runs where.")
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option("--model", envvar="KZTTS_MODEL", help="Folder with the two GGUF files."),
    ] = None,
    device: _Device = None,
    device_talker: _DeviceTalker = None,
    device_cp: _DeviceCp = None,
    device_decoder: _DeviceDecoder = None,
    max_rows: _MaxRows = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the placement here.")
    ] = None,
) -> None:
    """Show what this machine has and which model could speak in real time on it."""
    from kazeia_engine.devices import named
    from kazeia_engine.model import Model
    from kazeia_engine.tools.placement import show

    if not placement:
        if json_file is not None:
            refuse("--json writes the placement: give --placement, too")
        _show_machine()
        return
    if model is None:
        refuse("--placement needs --model DIR")
    check_json_target(json_file)
    with errors_as_exit_codes():
        devices = named(
            device, talker=device_talker, cp=device_cp, decoder=device_decoder, max_rows=max_rows
        )
        with Model.load(model, devices=devices) as loaded:
            found = loaded.placement()
        show(console_for_tables(), found)
        write_json(json_file, found)


def _show_machine() -> None:
    from rich.table import Table

    from kazeia_engine.tools.doctor import findings, outlooks
    from kazeia_engine.tools.machine import Speed, busy_warning

    console = console_for_tables()
    with errors_as_exit_codes():
        found = findings()
        facts = Table(show_header=False, box=None)
        for finding in found:
            problem = "" if finding.ok else "PROBLEM: "
            facts.add_row(finding.what, problem + finding.value)
        console.print(facts)
        if not all(finding.ok for finding in found):
            raise typer.Exit(FAILED)
        speed = Speed.measure(seconds=1.0)
        console.print()
        console.print(
            f"memory {speed.read_gbs_n:.1f} GB/s and f32 products {speed.gflops_n:.1f} GFLOP/s on "
            f"{speed.threads} threads, measured with the engine's own loops ({speed.kernels}; "
            f"{speed.integer_kernels} for integer weights)"
        )
        if (warning := busy_warning(speed.foreign_cores)) is not None:
            console.print(f"warning: {warning}")
        table = Table("model", "weights", "GB read a second", "rtf", "real time?", box=None)
        for o in outlooks(speed):
            table.add_row(o.model, o.formats, f"{o.gb_per_second:.1f}", f"{o.rtf:.2f}", o.verdict)
        console.print(table)
        console.print("rtf: estimated from these figures, products and reading at full speed.")
        console.print("`kazeia bench --synthetic 0.6b` measures without a download.")


def _report(report: WrittenPair) -> None:
    typer.echo(f"{report.talker} ({report.talker_bytes / 1e6:.1f} MB)")
    typer.echo(f"{report.codec} ({report.codec_bytes / 1e6:.1f} MB)")
    for remark in report.notes:
        typer.echo(f"note: {remark}", err=True)
    if report.types.lossy:
        typer.echo(
            f"warning: lossy: the code predictor needs 8 bits; in {report.types.cp} about half of "
            "its codes change (`kazeia quality` counts them)",
            err=True,
        )


def _show_quality(figures: dict[str, Any]) -> None:
    from rich.table import Table

    from kazeia_engine.tools.quality import MAX_SNR

    console = console_for_tables()
    columns = ("KL mean", "KL 99 %", "KL max", "top 1", "top 5", "choices")
    table = Table("codebook", *columns, box=None)
    rows = [
        *((str(i), row) for i, row in enumerate(figures["codebooks"])),
        ("talker (0)", figures["talker"]),
        ("code predictor (1..)", figures["cp"]),
    ]
    for name, d in rows:
        kl = (f"{d[key]:.4f}" for key in ("kl_mean", "kl_p99", "kl_max"))
        table.add_row(name, *kl, f"{d['top1']:.1%}", f"{d['top5']:.1%}", str(d["choices"]))
    console.print(table)
    for name, snr in figures["decoder"].items():
        found = "the same audio" if snr == MAX_SNR else f"{snr:.1f} dB"
        console.print(f"decoder, {name} codes: {found}")
    for name, size in figures["bytes"].items():
        talker, codec = size["talker"] / 1e6, size["codec"] / 1e6
        console.print(f"{name}: {talker:.1f} + {codec:.1f} MB")
    limits = figures["limits"]
    console.print(
        f"gate: talker {limits['talker']:.0%}, code predictor {limits['cp']:.0%}, "
        f"decoder {limits['snr']:g} dB"
    )
    for remark in figures["notes"]:
        console.print(f"note: {remark}")


def _read_ids(path: Path) -> list[int]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as err:
        refuse(f"{path} cannot be read as JSON: {err}")
    if isinstance(data, dict):
        data = data.get("ids")
    if not isinstance(data, list) or not all(type(i) is int for i in data):
        refuse(f'{path}: expected a JSON list of token ids, or {{"ids": [...]}}')
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
    refuse(
        f"first difference at position {at}: got {shown(ids, at)}, expected {shown(expected, at)}",
        FAILED,
    )
