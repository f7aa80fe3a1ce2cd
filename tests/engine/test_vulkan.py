"""A real second device: Vulkan, in software where there is no GPU (`make vulkan`).

Needs llama-cpp-python built with Vulkan; without a Vulkan device these tests fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from device_checks import (
    GoldenCase,
    equals_the_kernels,
    gives_the_official_samples,
    placements,
)
from typer.testing import CliRunner

from kazeia_engine import Devices, Model
from kazeia_engine.devices import Device, auto_device, device_list
from kazeia_engine.tools.cli import app

pytestmark = [pytest.mark.vulkan, pytest.mark.timeout(1800)]

# ggml rounds both sides of a product with more than eight columns to 16 bits wherever the driver
# can compute in them, f32 weights too; GGML_VK_DISABLE_F16 stops that.
IN_F32 = "GGML_VK_DISABLE_F16" in os.environ
# Vulkan compilers may fuse and reorder, and exp, sin and division may be 3 units off.
TOLERANCE = 2e-4 if IN_F32 else 1e-3
DECODER_TOLERANCE = 1e-4 if IN_F32 else 3e-2
# Chunks of 8, 4, 2 and 1 frames: graphs of every length.
LENGTHS: dict[str, Any] = {"frames": 9, "chunks": (0, 6)}


@pytest.fixture(scope="module")
def vulkan() -> Device:
    found = device_list()
    for device in found:
        if device.name.startswith("Vulkan"):
            return device
    pytest.fail(
        "no Vulkan device: expected llama-cpp-python built with -DGGML_VULKAN=ON and a driver; "
        f"software drivers are seen with GGML_VK_VISIBLE_DEVICES=0; found {found}"
    )


@pytest.mark.parametrize(
    ("model", "where"),
    [
        ("custom-projected", "talker"),
        ("custom-projected", "cp"),
        ("custom-projected", "decoder"),
        ("custom-projected", "all"),
        ("custom-equal", "all, 1024 rows"),
    ],
)
def test_vulkan_gives_what_the_kernels_give(
    golden_models: dict[str, Path], vulkan: Device, model: str, where: str
) -> None:
    devices = placements(vulkan.name)[where]
    found = equals_the_kernels(
        golden_models[model],
        devices,
        tolerance=TOLERANCE,
        decoder_tolerance=DECODER_TOLERANCE,
        **LENGTHS,
    )
    print(f"\n{model}, {where}: " + ", ".join(f"{k} {v:.1e}" for k, v in found.items()))
    assert max(found.values()) > 0


def test_vulkan_gives_the_official_samples(
    golden_models: dict[str, Path], golden_case: GoldenCase, vulkan: Device
) -> None:
    gives_the_official_samples(
        golden_models["custom-projected"],
        golden_case("custom-projected", "decoder_stages"),
        Devices(decoder=vulkan.name),
        tolerance=DECODER_TOLERANCE,
    )


def test_everything_is_placed_on_vulkan(
    golden_models: dict[str, Path], vulkan: Device, tmp_path: Path
) -> None:
    target = tmp_path / "placement.json"
    arguments = ["doctor", "--placement", "--model", str(golden_models["custom-projected"])]
    arguments += ["--device", vulkan.name.lower(), "--json", str(target)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert f"talker on {vulkan.name}" in result.stdout
    for part in json.loads(target.read_text("utf-8"))["parts"]:
        assert part["weights"]["host_bytes"] == 0
        for graph in part["graphs"]:
            assert {node["device"] for node in graph["nodes"]} == {vulkan.name}, graph["graph"]


def test_listing_devices_prints_nothing(vulkan: Device) -> None:
    program = "from kazeia_engine.devices import device_list; print(len(device_list()))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) >= 1
    assert done.stderr == ""


def test_auto_is_the_gpu(golden_models: dict[str, Path], vulkan: Device) -> None:
    assert auto_device() == vulkan
    with Model.load(golden_models["design"], devices="auto") as model:
        assert {part["device"] for part in model.placement()["parts"]} == {vulkan.name}
