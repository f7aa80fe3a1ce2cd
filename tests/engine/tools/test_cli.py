"""The engine's commands: output, exit codes and messages."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kazeia_engine import InvalidInput, Model
from kazeia_engine.modelfiles import find_pair
from kazeia_engine.tools import terminal
from kazeia_engine.tools.bench.figures import Settings, _require_fits
from kazeia_engine.tools.bench.runs import spoken_text
from kazeia_engine.tools.cli import app


def run(*arguments: str | Path, expect: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == expect, (result.output, result.exception)
    if expect:
        assert "Traceback" not in result.output
    return result


def error_line(result: Any) -> str:
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.fixture(scope="module")
def folder(golden_models: dict[str, Path]) -> Path:
    return golden_models["custom-projected"]


def test_help_lists_the_commands() -> None:
    out = run("--help").stdout
    for command in (
        "convert",
        "synth",
        "quantize",
        "validate",
        "quality",
        "bench",
        "tokenize",
        "pull",
        "doctor",
    ):
        assert command in out


def test_convert(golden_dir: Path, tmp_path: Path) -> None:
    result = run("convert", golden_dir / "design", "-o", tmp_path / "out", "--type", "f16")
    pair = find_pair(tmp_path / "out")
    assert str(pair.talker) in result.stdout
    assert str(pair.codec) in result.stdout
    assert "100 %" in result.stderr  # progress, in lines where there is no terminal


@pytest.mark.parametrize("source", ["nowhere", "empty"])
def test_convert_without_a_model(tmp_path: Path, source: str) -> None:
    (tmp_path / "empty").mkdir()
    result = run("convert", tmp_path / source, "-o", tmp_path / "out", expect=2)
    assert str(tmp_path / source) in error_line(result)
    assert not (tmp_path / "out").exists()


def test_convert_to_an_unknown_type(golden_dir: Path, tmp_path: Path) -> None:
    result = run("convert", golden_dir / "base", "-o", tmp_path, "--type", "q99", expect=2)
    assert "q8_0" in error_line(result)


def test_synth_speaks(tmp_path: Path) -> None:
    run("synth", "--size", "tiny", "--type", "q8_0", "-o", tmp_path)
    result = run("validate", "--model", tmp_path, "--frames", "5")
    assert "75/75 codes match" in result.stdout


def test_synth_of_an_unknown_size(tmp_path: Path) -> None:
    assert "0.6b" in error_line(run("synth", "--size", "9b", "-o", tmp_path, expect=2))


def test_validate(folder: Path) -> None:
    lines = run("validate", "--model", folder).stdout.splitlines()
    assert lines[0] == "ok   code predictor, cached = recomputed: 495/495 codes match"
    assert all(line.startswith("ok ") for line in lines)


def test_validate_fails_with_code_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kazeia_engine.tools.validate.MAX_PCM_DIFFERENCE", -1.0)
    result = run("validate", "--model", folder, "--frames", "2", expect=1)
    assert "FAIL audio in chunks of 1 = in one" in result.stdout
    assert "checks failed" in error_line(result)


@pytest.mark.parametrize("command", ["validate", "bench", "tokenize"])
def test_missing_model(tmp_path: Path, command: str) -> None:
    text = ["Hello"] if command == "tokenize" else []
    result = run(command, *text, "--model", tmp_path / "none", expect=2)
    assert str(tmp_path / "none") in error_line(result)
    (tmp_path / "half").mkdir()
    assert str(tmp_path / "half") in error_line(
        run(command, *text, "--model", tmp_path / "half", expect=2)
    )


@pytest.mark.parametrize("command", ["validate", "bench", "tokenize"])
def test_damaged_model(tmp_path: Path, folder: Path, command: str) -> None:
    text = ["Hello"] if command == "tokenize" else []
    pair = find_pair(folder)
    (tmp_path / pair.codec.name).write_bytes(pair.codec.read_bytes())
    for size in (0, 10, 5000, pair.talker.stat().st_size - 100):
        (tmp_path / pair.talker.name).write_bytes(pair.talker.read_bytes()[:size])
        message = error_line(run(command, *text, "--model", tmp_path, expect=2))
        assert pair.talker.name in message


def test_bench_writes_json(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "bench.json"
    options = ("--frames", "6", "--repeat", "1", "--chunk", "3", "--busy", "1", "--json", target)
    result = run("bench", "--model", folder, *options)
    figures = json.loads(target.read_text())
    assert {"rtf", "ttfb_ms", "stages_ms_per_frame", "rss_mb", "machine"} <= figures.keys()
    assert (figures["chunk"], figures["frames"], figures["busy"]["processes"]) == (3, 6, 1)
    assert figures["verdict"] in " ".join(result.stdout.split())
    assert "ms a frame" in result.stdout
    assert f"{figures['rtf']:.3f}" in result.stdout
    assert "estimate: rtf" in result.stderr


def test_bench_synthetic(tmp_path: Path) -> None:
    target = tmp_path / "bench.json"
    run("bench", "--synthetic", "tiny", "--type", "f16", "--json", target)
    figures = json.loads(target.read_text())
    assert (figures["model"], figures["formats"]["talker"]) == ("synth-tiny", "f16")
    assert (figures["frames"], figures["repeat"]) == (24, 1)


@pytest.mark.parametrize("command", ["bench", "quality"])
def test_figures_are_shown_where_json_cannot_be_written(folder: Path, command: str) -> None:
    target = "/dev/full"  # opens, but takes nothing
    other = () if command == "bench" else ("--reference", folder)
    options = ("--frames", "2", "--json", target)
    result = run(command, "--model", folder, *other, *options, expect=1)
    assert target in error_line(result)
    assert "talker" in result.stdout


def test_bench_compares(tmp_path: Path) -> None:
    run("synth", "--size", "tiny", "-o", tmp_path)
    options = ("--frames", "3", "--repeat", "1", "--compare")
    out = run("bench", "--model", tmp_path, *options).stdout
    assert "llama.cpp" in out
    assert "first audio, s" in out


def test_bench_fails_where_llama_cpp_does(folder: Path) -> None:
    options = ("--frames", "3", "--repeat", "1", "--compare")
    result = run("bench", "--model", folder, *options, expect=1)
    assert "llama.cpp failed" in error_line(result)
    assert "ms a frame" in result.stdout  # the rest is shown


@pytest.mark.parametrize(
    "wrong",
    [("--chunk", "often"), ("--chunk", "-1"), ("--frames", "0"), ("--repeat", "0"),
     ("--threads", "0"), ("--json", "/nonexistent-folder/x.json"), ("--busy", "-1"),
     ("--synthetic", "9b")],
)  # fmt: skip
def test_bench_refuses(folder: Path, wrong: tuple[str, str]) -> None:
    error_line(run("bench", "--model", folder, *wrong, expect=2))


def test_bench_needs_something_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KZTTS_MODEL", raising=False)
    assert "--synthetic" in error_line(run("bench", expect=2))


def test_tokenize(folder: Path, tmp_path: Path) -> None:
    ids = json.loads(run("tokenize", "the voix", "--model", folder).stdout)
    assert len(ids) > 8
    talker = find_pair(folder).talker
    assert json.loads(run("tokenize", "the voix", "--model", talker).stdout) == ids
    raw = json.loads(run("tokenize", "the voix", "--raw", "--model", talker).stdout)
    assert ids[3:-5] == raw
    check = tmp_path / "ids.json"
    for data in (ids, {"ids": ids}):
        check.write_text(json.dumps(data))
        result = run("tokenize", "the voix", "--model", folder, "--check", check)
        assert result.stdout == f"{len(ids)}/{len(ids)} ids match\n"


def test_tokenize_takes_the_model_from_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KZTTS_MODEL", str(folder))
    assert len(json.loads(run("tokenize", "a").stdout)) == 9


def test_tokenize_shows_the_first_difference(folder: Path, tmp_path: Path) -> None:
    ids = json.loads(run("tokenize", "the voix", "--model", folder).stdout)
    check = tmp_path / "ids.json"
    n = len(ids)

    def message(data: list[int]) -> str:
        check.write_text(json.dumps(data))
        result = run("tokenize", "the voix", "--model", folder, "--check", check, expect=1)
        return f"{result.stdout.strip()}; {error_line(result)}"

    wrong = [*ids[:4], ids[4] + 1, *ids[5:]]
    assert f"{n - 1}/{n} ids match" in message(wrong)
    assert f"position 4: got {ids[4]}" in message(wrong)
    assert f"expected {ids[4] + 1} " in message(wrong)
    assert f"position {n - 1}: got {ids[-1]}" in message(ids[:-1])
    assert "expected nothing" in message(ids[:-1])
    assert "got nothing, expected 5 " in message([*ids, 5])
    assert "9999999, which is no token" in message([9999999, *ids[1:]])


@pytest.mark.parametrize(
    "content", ["", "not json", "{}", '["a"]', "[1.5]", "[true]", '{"ids": 3}', "\udcff"]
)
def test_tokenize_with_an_unusable_list(folder: Path, tmp_path: Path, content: str) -> None:
    check = tmp_path / "ids.json"
    check.write_bytes(content.encode("utf-8", "surrogateescape"))
    result = run("tokenize", "a", "--model", folder, "--check", check, expect=2)
    assert str(check) in error_line(result)


def test_tokenize_without_the_list(folder: Path, tmp_path: Path) -> None:
    error_line(run("tokenize", "a", "--model", folder, "--check", tmp_path / "none", expect=2))


@pytest.mark.parametrize("text", ["a\0b", "\udcff"])
def test_tokenize_text_that_is_no_text(folder: Path, text: str) -> None:
    error_line(run("tokenize", text, "--model", folder, expect=2))


def test_missing_option_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KZTTS_MODEL", raising=False)
    run("validate", expect=2)


def test_doctor() -> None:
    out = run("doctor").stdout
    for word in ("cores", "memory", "GFLOP/s", "ggml", "0.6b", "1.7b", "q8_0", "real time?"):
        assert word in out
    assert "PROBLEM" not in out


@pytest.mark.parametrize(
    "command",
    [
        ("convert", "x", "-o", ""),
        ("synth", "--size", "tiny", "-o", ""),
        ("quantize", "x", ""),
        ("pull", "0.6b-base", "-o", ""),
    ],
    ids=lambda c: c[0],
)
def test_an_empty_folder_name_is_not_the_present_folder(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "it is empty: expected a folder" in run(*command, expect=2).stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_a_type_of_a_model_that_has_its_own(folder: Path) -> None:
    result = run("bench", "--model", folder, "--type", "q4_0", expect=2)
    assert "--type is that of --synthetic" in error_line(result)


def test_more_frames_than_the_model_has(folder: Path) -> None:
    result = run("bench", "--model", folder, "--frames", "1000000", expect=2)
    assert re.search(r"frames is 1000000, expected at most \d+", error_line(result))


def test_the_most_frames_are_those_that_are_generated(folder: Path) -> None:
    with Model.load(folder) as model:
        text = spoken_text(model)
        speaker = model.info.speakers[0] if model.info.speakers else None
        most = model.most_frames(text, speaker=speaker)
        taken = model._prepare(text, speaker=speaker, max_frames=most + 5)[1].max_frames
        assert taken == most
        _require_fits(Settings(frames=most), model)
        with pytest.raises(InvalidInput, match=f"at most {most}"):
            _require_fits(Settings(frames=most + 1), model)


@pytest.mark.parametrize("limit", ["--min-snr=nan", "--min-talker=1.5", "--min-cp=-0.1"])
def test_limits_of_quality_are_looked_at_first(folder: Path, limit: str, tmp_path: Path) -> None:
    result = run("quality", "--model", folder, "--reference", folder, limit, expect=2)
    assert limit[2:].split("=")[0].replace("-", "_") in error_line(result)
    assert "reference:" not in result.stderr  # no model was loaded


def test_json_appears_whole_or_not_at_all(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "figures.json"
    target.write_text("old")
    terminal.write_json(target, {"rtf": 1})
    assert json.loads(target.read_text()) == {"rtf": 1}

    def full(self: Path, text: str, **_: Any) -> None:
        with self.open("w") as f:
            f.write(text[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=f"cannot write {target}: No space left"):
        terminal.write_json(target, {"rtf": 2})
    assert json.loads(target.read_text()) == {"rtf": 1}
    assert [f.name for f in tmp_path.iterdir()] == ["figures.json"]


def test_json_through_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    terminal.write_json(link, {"rtf": 1})
    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"rtf": 1}


def test_json_to_standard_output(tmp_path: Path) -> None:
    link, out = tmp_path / "stdout", tmp_path / "out.json"
    link.symlink_to("/proc/self/fd/1")
    script = f"""
from pathlib import Path
from kazeia_engine.tools.terminal import write_json
write_json(Path({str(link)!r}), {{"rtf": 1}})
"""
    with out.open("wb") as f:
        subprocess.run([sys.executable, "-c", script], stdout=f, check=True, timeout=60)
    assert link.is_symlink()
    assert json.loads(out.read_text()) == {"rtf": 1}


def test_json_into_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        terminal.write_json(pipe, {"rtf": 1})
        assert json.loads(read.result()) == {"rtf": 1}


def test_sigterm_removes_what_was_begun(tmp_path: Path, golden_models: dict[str, Path]) -> None:
    """The command ends as by Ctrl-C: its temporary folder goes with it."""
    source = golden_models["custom-projected"]
    script = f"""
import os, signal
from kazeia_engine.tools import quantize
real = quantize._Job.write
def write(self, path, progress):
    real(self, path, progress)
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
quantize._Job.write = write
from kazeia_engine.tools.cli import app
app(["quantize", {str(source)!r}, {str(tmp_path / "out")!r}, "--talker", "q4_0"])
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert process.returncode == 143, process.stderr
    assert b"Traceback" not in process.stderr
    assert not (tmp_path / "out").exists()
