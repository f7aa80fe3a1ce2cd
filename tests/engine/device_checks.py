"""What a model with parts on a device must do as the engine's own kernels do it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kazeia_engine import Devices, Model

GoldenCase = Callable[[str, str], dict[str, npt.NDArray[Any]]]

GREEDY: dict[str, Any] = {"temperature": 0.0, "cp_temperature": 0.0, "repetition_penalty": 1.0}
TEXT = "The quick brown fox jumps over the lazy dog."
PCM_TOLERANCE = 1e-4  # of samples of -1..1


def placements(device: str) -> dict[str, Devices]:
    """Each part alone on the device, then all of them, then all with split products."""
    return {
        "talker": Devices(talker=device),
        "cp": Devices(cp=device),
        "decoder": Devices(decoder=device),
        "all": Devices.all(device),
        "all, 1024 rows": Devices.all(device, max_rows=1024),
    }


def relative(got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """The largest difference over the largest expected value (at least 1)."""
    assert got.shape == expected.shape
    assert np.isfinite(got).all()
    return float(np.abs(got - expected).max() / max(1.0, float(np.abs(expected).max())))


def equals_the_kernels(
    path: Path,
    devices: Devices,
    *,
    tolerance: float,
    decoder_tolerance: float = PCM_TOLERANCE,
    frames: int = 24,
    chunks: tuple[int, ...] = (0, 1, 5),
) -> dict[str, float]:
    """Greedy codes, hidden states, logits, stages and samples of an f32 pair on both.

    decoder_tolerance: of its stages and samples.  Returns the relative differences, by name.
    """
    with (
        Model.load(path, precision="f32") as here,
        Model.load(path, precision="f32", devices=devices) as there,
    ):
        speaker = here.info.speakers[0] if here.info.speakers else None
        options = {**GREEDY, "speaker": speaker, "max_frames": frames, "ignore_eos": True}
        expected = here.synthesize(TEXT, chunk=0, **options)
        found: dict[str, float] = {}
        limits: dict[str, float] = {}
        for chunk in chunks:
            result = there.synthesize(TEXT, chunk=chunk, **options)
            np.testing.assert_array_equal(result.codes, expected.codes)
            assert np.abs(expected.pcm).max() > 1e-2
            found[f"pcm, chunk {chunk}"] = float(np.abs(result.pcm - expected.pcm).max())
            assert found[f"pcm, chunk {chunk}"] <= decoder_tolerance
        forced = {**options, "frames": min(frames, 12), "force_codes": expected.codes}
        mine, theirs = here.trace(TEXT, **forced), there.trace(TEXT, **forced)
        for name in ("talker_hidden", "talker_logits", "cp_logits"):
            found[name] = relative(theirs[name], mine[name])
            limits[name] = tolerance
        stages, expected_stages = (m.trace_decoder(expected.codes) for m in (there, here))
        for name, values in expected_stages.items():
            found[name] = relative(stages[name], values)
        too_far = {
            name: f"{d:.1e}" for name, d in found.items() if d > limits.get(name, decoder_tolerance)
        }
        assert not too_far, f"beyond {tolerance:.0e}, decoder {decoder_tolerance:.0e}: {too_far}"
        # The comparison must see a difference of one code.
        other = expected.codes.copy()
        other[3, 7] = (other[3, 7] + 1) % here.info.sizes["codebook_size"]
        assert (
            relative(there.trace_decoder(other)["pcm"], expected_stages["pcm"])
            > 10 * decoder_tolerance
        )
        return found


def gives_the_official_samples(
    path: Path,
    codes_and_pcm: dict[str, npt.NDArray[Any]],
    devices: Devices,
    *,
    tolerance: float = PCM_TOLERANCE,
) -> float:
    """The decoder against what the official code decodes; returns the largest difference."""
    with Model.load(path, precision="f32", devices=devices) as model:
        pcm = model.trace_decoder(codes_and_pcm["codes"])["pcm"].ravel()
        difference = float(np.abs(pcm - codes_and_pcm["pcm"].ravel()).max())
    assert difference <= tolerance
    return difference
