"""Options of an utterance: their defaults and their native form."""

from __future__ import annotations

import ctypes as C
from typing import Any, get_type_hints

import pytest

from kazeia_engine import Guard, InvalidInput, binding
from kazeia_engine.options import SpeechOptions, default_options, stream_params, voice_options

MOST = 4096


def native(longest: int = MOST, **options: Any) -> binding.StreamParams:
    return stream_params(options, max_positions=MOST, longest=longest)


def test_defaults_are_those_of_the_library() -> None:
    default = binding.StreamParams(struct_size=C.sizeof(binding.StreamParams))
    binding.library().kz_stream_params_default(C.byref(default))
    assert bytes(native()) == bytes(default)
    assert bytes(native(**default_options())) == bytes(default)
    assert default_options() == {
        "seed": 0,
        "temperature": 0.9,
        "top_k": 50,
        "top_p": 1.0,
        "repetition_penalty": 1.05,
        "rep_window": 0,
        "cp_temperature": 0.9,
        "cp_top_k": 50,
        "cp_top_p": 1.0,
        "max_frames": 2048,
        "min_frames": 2,
        "skip_frames": 0,
        "chunk": "auto",
    }


def test_every_option_has_its_place() -> None:
    guard = Guard(1.5, 2, 3.5, 4, 5)
    made = native(
        seed=1, temperature=2.5, top_k=3, top_p=0.25, repetition_penalty=5.5, rep_window=6,
        cp_temperature=7.5, cp_top_k=8, cp_top_p=0.5, max_frames=10, min_frames=9, skip_frames=12,
        chunk=13, cp_cache=False, ignore_eos=True, profile=True, guard=guard,
    )  # fmt: skip
    talker, cp, kept = made.talker, made.cp, made.guard
    assert (talker.temperature, talker.top_k, talker.top_p) == (2.5, 3, 0.25)
    assert (talker.repetition_penalty, talker.rep_window) == (5.5, 6)
    assert (cp.temperature, cp.top_k, cp.top_p) == (7.5, 8, 0.5)
    assert (cp.repetition_penalty, cp.rep_window) == (1.0, 0)
    assert (made.seed, made.max_frames, made.min_frames, made.skip_frames) == (1, 10, 9, 12)
    assert (made.chunk, made.cp_recompute, made.ignore_eos, made.profile) == (13, 1, 1, 1)
    assert (kept.frames_per_token, kept.min_frames, kept.eos_boost) == (1.5, 2, 3.5)
    assert (kept.repeat_frames, kept.silence_frames) == (4, 5)


def test_speech_ends_where_the_model_does() -> None:
    cut = native(longest=7)
    assert (cut.max_frames, cut.min_frames) == (7, 2)
    assert (native(longest=1).max_frames, native(longest=1).min_frames) == (1, 1)
    assert native(max_frames=5, min_frames=6).min_frames == 5
    assert native(chunk=1_000_000).chunk == MOST  # as much as the settings and every door take


def test_the_names_are_those_of_the_signature() -> None:
    """What a type checker lets through is known here, and nothing else."""
    names = set(get_type_hints(SpeechOptions))
    flags = {"cp_cache": True, "ignore_eos": False, "profile": False, "guard": None}
    voice, others = voice_options({**dict.fromkeys(("speaker", "instruct")), **flags})
    assert others == flags
    native(**default_options(), **flags)
    assert names == {*voice, *default_options(), *flags, "text_mode"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bogus": 1}, "unknown option 'bogus'"),
        ({"seed": -1}, r"seed is -1, expected 0\.\.18446744073709551615"),
        ({"temperature": 101}, r"temperature is 101, expected 0\.\.100"),
        ({"top_p": 0}, "top_p is 0, expected more than 0 and at most 1"),
        ({"cp_top_p": float("nan")}, "cp_top_p is nan"),
        ({"max_frames": 0}, r"max_frames is 0, expected 1\.\."),
        ({"skip_frames": MOST + 1}, rf"skip_frames is {MOST + 1}, expected 0\.\.{MOST}"),
        ({"chunk": -1}, r"chunk is -1, expected 0\.\."),
        ({"chunk": "all"}, "chunk is 'all', expected a whole number"),
        ({"top_k": 1.0}, "top_k is 1.0, expected a whole number"),
        ({"profile": 1}, "profile is 1, expected True or False"),
        ({"guard": {}}, "guard is {}, expected a Guard or None"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        native(**options)
    assert caught.value.param == next(iter(options))
