from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox import Sandbox

from kazeia_engine.tools.convert import convert

GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "custom-projected"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models the documents speak of, each a tiny one of true architecture."""
    folder = tmp_path_factory.mktemp("documents") / "models"
    folder.mkdir()
    official = folder / "qwen3-tts-12hz-0.6b-customvoice"
    shutil.copytree(GOLDEN, official)
    convert(official, folder / "custom", type="q8_0")
    return folder


@pytest.fixture
def sandbox(tmp_path: Path, models: Path) -> Iterator[Sandbox]:
    sandbox = Sandbox(tmp_path, models)
    yield sandbox
    sandbox.close()
