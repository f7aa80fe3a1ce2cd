"""Fixtures of the engine tests: the golden models and what the official code does with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kazeia_engine.tools.convert import convert

GoldenCase = Callable[[str, str], dict[str, npt.NDArray[Any]]]


@pytest.fixture(autouse=True)
def _children_wait_passively(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp's OpenMP threads spin at every barrier: minutes for a test on a busy machine."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """The folder of the committed golden data."""
    return Path(__file__).parents[1] / "golden" / "data"


@pytest.fixture(scope="session")
def golden_manifest(golden_dir: Path) -> dict[str, Any]:
    """The manifest: models, their cases, versions."""
    manifest: dict[str, Any] = json.loads((golden_dir / "manifest.json").read_text("utf-8"))
    return manifest


@pytest.fixture(scope="session")
def golden_case(golden_dir: Path) -> GoldenCase:
    """Loads the arrays of a case by model and case name."""

    def load(model: str, case: str) -> dict[str, npt.NDArray[Any]]:
        with np.load(golden_dir / model / "cases" / f"{case}.npz") as arrays:
            return dict(arrays)

    return load


@pytest.fixture(scope="session")
def golden_models(
    golden_dir: Path, golden_manifest: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Folders with f32 pairs by model name; "llamacpp-base" is llama.cpp's own conversion."""
    root = tmp_path_factory.mktemp("golden-pairs")
    pairs = {}
    for name in golden_manifest["models"]:
        convert(golden_dir / name, root / name, type="f32")
        pairs[name] = root / name
    pairs["llamacpp-base"] = golden_dir / "llamacpp-base"
    return pairs
