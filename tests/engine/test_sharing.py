"""Streams that share passes, helpers and kept prompt prefixes: nothing of it changes a code."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kazeia_engine import Model
from kazeia_engine.tools.quantize import quantize

TEXTS = (
    "Hi.",
    "A sentence of some length, so that its prompt is fed in several pieces beside the others.",
    "Bonjour tout le monde.",
)


def codes(model: Model, i: int, **options: Any) -> npt.NDArray[np.int32]:
    """The codes of utterance i: text, speaker, length and seed follow from i."""
    speakers = model.info.speakers
    return model.synthesize(
        TEXTS[i % len(TEXTS)],
        speaker=speakers[i % len(speakers)] if speakers else None,
        seed=i,
        max_frames=6 + i,
        ignore_eos=True,
        chunk=("auto", 1, 0)[i % 3],
        **options,
    ).codes


@pytest.fixture(scope="module", params=["f32", "bf16", "q8_0", "q4_0"])
def pair(
    request: pytest.FixtureRequest,
    golden_models: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A pair whose talker and code predictor are both of one type."""
    source, kind = golden_models["custom-projected"], request.param
    if kind == "f32":
        return source
    out = tmp_path_factory.mktemp("sharing") / kind
    quantize(source, out, talker_type=kind, cp_type=kind)
    return out


@pytest.fixture(scope="module")
def alone(pair: Path) -> list[npt.NDArray[np.int32]]:
    """Each utterance by a model that has said nothing else."""
    made = []
    for i in range(5):
        with Model.load(pair, threads=1) as fresh:
            made.append(codes(fresh, i))
    return made


@pytest.fixture
def model(pair: Path) -> Iterator[Model]:
    with Model.load(pair) as loaded:
        yield loaded


def test_utterances_differ(alone: list[npt.NDArray[np.int32]]) -> None:
    assert len({made.tobytes() for made in alone}) == len(alone)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_joining_and_leaving_changes_no_code(
    pair: Path, alone: list[npt.NDArray[np.int32]], threads: int
) -> None:
    found: dict[int, npt.NDArray[np.int32]] = {}
    with Model.load(pair, threads=threads) as model:

        def speak(i: int) -> None:
            time.sleep(0.02 * i)  # joins while the others are at different frames
            found[i] = codes(model, i)

        # One more stays throughout and is then cut off in the middle.
        with model.stream(TEXTS[1], max_frames=2000, ignore_eos=True, seed=99, chunk=1) as other:
            next(other)
            speakers = [threading.Thread(target=speak, args=(i,)) for i in range(len(alone))]
            for thread in speakers:
                thread.start()
            for _ in range(5):
                next(other)
            other.close()
            for thread in speakers:
                thread.join()
    for i, expected in enumerate(alone):
        np.testing.assert_array_equal(found[i], expected)


def test_a_kept_prefix_changes_no_code(model: Model, alone: list[npt.NDArray[np.int32]]) -> None:
    for _ in range(2):  # the second time the prefixes of all voices are known
        for i, expected in enumerate(alone):
            np.testing.assert_array_equal(codes(model, i), expected)


def test_both_layouts_share_a_prefix(model: Model, pair: Path) -> None:
    with Model.load(pair) as fresh:
        expected = codes(fresh, 1, text_mode="streaming")
    codes(model, 1, text_mode="whole")
    np.testing.assert_array_equal(codes(model, 1, text_mode="streaming"), expected)


def test_the_decoder_is_deaf_to_helpers(pair: Path) -> None:
    made = []
    for threads in (1, 2, 4):
        with Model.load(pair, threads=threads) as model:
            made.append(model.synthesize(TEXTS[1], seed=3, max_frames=9, ignore_eos=True).pcm)
    np.testing.assert_array_equal(made[0], made[1])
    np.testing.assert_array_equal(made[0], made[2])
