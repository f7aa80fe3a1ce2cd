"""Parts of a model as ggml graphs, on ggml's processor device; other devices are in test_vulkan."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_checks import (
    GoldenCase,
    equals_the_kernels,
    gives_the_official_samples,
    placements,
)
from typer.testing import CliRunner

from kazeia_engine import Devices, EngineError, InvalidInput, Model
from kazeia_engine.devices import auto_device, device_list, json_text, named
from kazeia_engine.tools.bench import Settings
from kazeia_engine.tools.cli import app

GRAPH = "cpu-graph"


def run(*arguments: str | Path, expect: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == expect, (result.output, result.exception)
    return result


@pytest.mark.parametrize("where", placements(GRAPH))
def test_graphs_give_what_the_kernels_give(golden_models: dict[str, Path], where: str) -> None:
    found = equals_the_kernels(
        golden_models["custom-projected"], placements(GRAPH)[where], tolerance=1e-4
    )
    assert max(found.values()) > 0  # another computation, or nothing was compared


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("custom-projected", "decoder_stages"),
        ("custom-equal", "decoder_stages"),
        ("custom-projected", "decoder_window"),
    ],
)
def test_the_decoder_graph_gives_the_official_samples(
    golden_models: dict[str, Path], golden_case: GoldenCase, name: str, case: str
) -> None:
    gives_the_official_samples(golden_models[name], golden_case(name, case), Devices(decoder=GRAPH))


def test_quantised_weights_and_live_text(golden_models: dict[str, Path]) -> None:
    with Model.load(golden_models["custom-equal"], devices=GRAPH) as model:
        speaker = model.info.speakers[0]
        assert model.info.formats["devices"].count(GRAPH) == 3
        whole = model.synthesize("One two.", speaker=speaker, seed=4, max_frames=6, ignore_eos=True)
        again = model.synthesize("One two.", speaker=speaker, seed=4, max_frames=6, ignore_eos=True)
        np.testing.assert_array_equal(whole.codes, again.codes)
        with model.stream_live(speaker=speaker, max_frames=6, ignore_eos=True) as live:
            live.push_text("One ")
            live.push_text("two.")
            live.finish_text()
            assert sum(len(chunk.pcm) for chunk in live) == 6 * 1920
        with model.stream("One two.", speaker=speaker, max_frames=400, ignore_eos=True) as stream:
            next(stream)
            stream.close()
            assert len(list(stream)) <= 1


def test_validate_holds_on_graphs(golden_models: dict[str, Path]) -> None:
    folder = golden_models["custom-projected"]
    out = run("validate", "--model", folder, "--frames", "9", "--device", GRAPH).stdout
    assert out.count("ok  ") >= 5
    assert "FAIL" not in out


# ---- names ---------------------------------------------------------------------------


def test_unknown_devices_are_named_with_those_there_are(golden_models: dict[str, Path]) -> None:
    with pytest.raises(InvalidInput, match="cp_device is 'Warp9', expected one of cpu, cpu-graph"):
        Model.load(golden_models["design"], devices=Devices(cp="Warp9"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"talker": ""},
        {"cp": " "},
        {"decoder": 3},
        {"talker": "cpu\0"},
        {"cp": "Vulkan\udcff"},  # what a byte that is no UTF-8 becomes on a command line
        {"decoder": "a\nb"},
        {"max_rows": -1},
        {"max_rows": 1.5},
    ],
)
def test_bad_devices(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Devices(**wrong)


def test_only_devices_are_taken_for_devices(golden_models: dict[str, Path]) -> None:
    with pytest.raises(InvalidInput, match="devices is 3, expected Devices"):
        Model.load(golden_models["design"], devices=3)  # type: ignore[arg-type]


def test_odd_names_are_named(golden_models: dict[str, Path]) -> None:
    odd = "Gerät % %s %n " + "x" * 100_000
    with pytest.raises(InvalidInput, match="talker_device is 'Gerät % %s %n x"):
        Model.load(golden_models["design"], devices=Devices(talker=odd))


def test_empty_flags_are_no_names() -> None:
    for flag in ("every", "talker", "cp", "decoder"):
        with pytest.raises(InvalidInput, match="expected a name"):
            named("") if flag == "every" else named(**{flag: ""})
    arguments = ("validate", "--model", "nowhere", "--device-cp", "")
    assert "the device of cp is ''" in run(*arguments, expect=2).stderr


def test_too_few_rows(golden_models: dict[str, Path]) -> None:
    with pytest.raises(InvalidInput, match="max_rows is 63, expected 0 or 64"):
        Model.load(golden_models["design"], devices=Devices(max_rows=63))


def test_names_of_flags() -> None:
    assert named() == Devices()
    assert named("auto", cp="CPU", max_rows=64) == Devices("auto", "CPU", "auto", 64)
    assert Devices.all("x", max_rows=70) == Devices("x", "x", "x", 70)


def test_device_list_has_no_processor() -> None:
    assert all(d.name.lower() not in ("cpu", GRAPH) for d in device_list())


def test_auto_is_told_as_it_is_chosen(golden_models: dict[str, Path]) -> None:
    chosen = auto_device()
    assert chosen in (None, *device_list())
    with Model.load(golden_models["design"], devices="AUTO") as model:
        places = {part["device"] for part in model.placement()["parts"]}
    assert places == {"cpu" if chosen is None else chosen.name}


@pytest.mark.parametrize(("length", "calls"), [(10, 1), (1 << 16, 2), (200_000, 2)])
def test_a_text_is_asked_for_once(length: int, calls: int) -> None:
    sizes = []

    def write(answer: bytes, text: Any, size: int, needed: Any) -> int:
        sizes.append(size)
        needed._obj.value = len(answer) + 1
        if size <= len(answer):
            return 1
        text.value = answer
        return 0

    assert json_text(write, b"x" * length) == "x" * length
    assert len(sizes) == calls


def test_the_comparison_refuses_devices() -> None:
    with pytest.raises(InvalidInput, match="processor only"):
        Settings(compare=True, devices=Devices(talker=GRAPH))


# ---- placement -------------------------------------------------------------------------


def test_placement(golden_models: dict[str, Path], tmp_path: Path) -> None:
    folder, target = golden_models["custom-projected"], tmp_path / "placement.json"
    out = run(
        "doctor", "--placement", "--model", folder, "--device", GRAPH, "--device-cp", "cpu",
        "--max-rows", "1024", "--json", target,
    ).stdout  # fmt: skip
    assert f"talker on {GRAPH}" in out
    assert "code predictor on cpu" in out
    assert "mul_mat" in out
    found = json.loads(target.read_text("utf-8"))
    assert found["max_rows"] == 1024
    parts = {part["part"]: part for part in found["parts"]}
    assert parts["code predictor"]["graphs"] == []
    assert parts["code predictor"]["weights"]["host_bytes"] > 0
    assert parts["code predictor"]["device"] == "cpu"
    for part in ("talker", "decoder"):
        assert parts[part]["device"] == GRAPH
        assert parts[part]["weights"]["device_bytes"] > 0
        for graph in parts[part]["graphs"]:
            assert graph["splits"] == 1
            assert graph["copied_bytes"] == 0
            assert {node["device"] for node in graph["nodes"]} == {"CPU"}
    by_op = {n["op"]: n["count"] for n in parts["decoder"]["graphs"][0]["nodes"]}
    assert by_op["SIN"] == 29  # SnakeBeta: 4 blocks with 1 + 3 * 2, and the last one
    assert by_op["GELU_ERF"] == 2


def test_placement_needs_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KZTTS_MODEL", raising=False)
    assert "--model" in run("doctor", "--placement", expect=2).stderr
    assert "--placement" in run("doctor", "--json", tmp_path / "x.json", expect=2).stderr


def test_devices_reach_the_engine_from_the_environment(
    golden_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KZTTS_DEVICE_DECODER", "Warp9")
    arguments = ("doctor", "--placement", "--model", golden_models["design"])
    assert "decoder_device is 'Warp9'" in run(*arguments, expect=2).stderr
    assert "decoder on cpu" in run(*arguments, "--device-decoder", "cpu").stdout


def test_fields_are_those_of_the_settings() -> None:
    assert [f.name for f in dataclasses.fields(Devices)] == ["talker", "cp", "decoder", "max_rows"]
    assert issubclass(InvalidInput, Exception)
    assert not issubclass(InvalidInput, EngineError)
