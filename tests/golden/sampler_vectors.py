"""What the official sampling chain keeps, for seeded logits.

The chain is the one `generate` of the installed transformers builds for the talker, in its order.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

__all__ = ["write_sampler_vectors"]

N = 160  # ids
EOS = 130
SUPPRESSED = [i for i in range(128, N) if i != EOS]


def _probabilities(
    talker: Any, logits: np.ndarray, history: list[int], p: dict[str, Any]
) -> np.ndarray:
    config = GenerationConfig(
        do_sample=True,
        temperature=p["temperature"],
        top_k=p["top_k"],
        top_p=p["top_p"],
        repetition_penalty=p["repetition_penalty"],
        suppress_tokens=SUPPRESSED if p["suppress"] else None,
        min_new_tokens=2 if p["suppress"] else None,
        eos_token_id=EOS,
        pad_token_id=EOS,
    )
    # generate() fills these in before it builds the chain.
    config._eos_token_tensor = torch.tensor([EOS])
    chain = talker._get_logits_processor(
        generation_config=config, input_ids_seq_length=0, device="cpu", logits_processor=[]
    )
    ids = torch.tensor([history], dtype=torch.long)
    scores = chain(ids, torch.from_numpy(logits)[None].clone())
    return torch.softmax(scores, dim=-1)[0].numpy()


def _logits(rng: np.random.Generator, shape: str) -> np.ndarray:
    x = (rng.standard_normal(N) * 3).astype(np.float32)
    if shape == "tied":  # many equal values, also across the top-k border
        x = np.round(x).astype(np.float32)
    elif shape == "flat":
        x = np.full(N, 0.5, dtype=np.float32)
    elif shape == "peaked":
        x[rng.integers(0, 128)] = 60.0
    elif shape == "negative":
        x = -np.abs(x) - 1
    return x.astype(np.float32)


def _settings() -> list[dict[str, Any]]:
    base = {
        "temperature": 0.9,
        "top_k": 50,
        "top_p": 1.0,
        "repetition_penalty": 1.05,
        "suppress": True,
    }
    grid = itertools.product((0.9, 1.0, 0.3, 1.7), (0, 1, 5, 50), (1.0, 0.8))
    rows = [{**base, "temperature": t, "top_k": k, "top_p": p} for t, k, p in grid]
    rows += [
        {**base, "top_k": 1000},
        {**base, "top_p": 0.05, "top_k": 0},
        {**base, "top_p": 0.999, "top_k": 0},
        {**base, "repetition_penalty": 1.0},
        {**base, "repetition_penalty": 2.0},
        {**base, "repetition_penalty": 0.8},
        {**base, "suppress": False, "repetition_penalty": 1.0},
        {**base, "suppress": False, "repetition_penalty": 1.0, "top_p": 0.5},
    ]
    return rows


def write_sampler_vectors(talker: Any, path: Path) -> None:
    """Writes one row per case.

    logits [n, N] f32, probs [n, N] f32, suppressed [n, N] u8 (the ids that may not be drawn, EOS
    of the first two draws included), history [n, 24] i32 (-1: none), temperature, top_p,
    repetition_penalty [n] f64, top_k [n] i32.
    """
    rng = np.random.default_rng(7)
    shapes = itertools.cycle(("plain", "tied", "plain", "peaked", "negative", "flat", "tied"))
    lengths = itertools.cycle((12, 0, 24, 1, 5))
    rows: dict[str, list[Any]] = {
        k: []
        for k in (
            "logits",
            "probs",
            "suppressed",
            "history",
            "temperature",
            "top_k",
            "top_p",
            "repetition_penalty",
        )
    }
    for setting, shape, length in zip(_settings(), shapes, lengths, strict=False):
        logits = _logits(rng, shape)
        history = [int(x) for x in rng.integers(0, 128, size=length)]
        if length > 2:
            history[-1] = history[0]  # a repeated id counts once
        suppressed = np.zeros(N, dtype=np.uint8)
        if setting["suppress"]:
            suppressed[SUPPRESSED] = 1
            suppressed[EOS] = length < 2
        probs = _probabilities(talker, logits, history, setting)
        if probs[suppressed > 0].any():
            raise AssertionError("the official chain drew a suppressed id")
        rows["logits"].append(logits)
        rows["probs"].append(probs)
        rows["suppressed"].append(suppressed)
        rows["history"].append(history + [-1] * (24 - length))
        for key in ("temperature", "top_k", "top_p", "repetition_penalty"):
            rows[key].append(setting[key])
    arrays = {k: np.array(v) for k, v in rows.items()}
    arrays["history"] = arrays["history"].astype(np.int32)
    arrays["top_k"] = arrays["top_k"].astype(np.int32)
    np.savez_compressed(path, **arrays)
