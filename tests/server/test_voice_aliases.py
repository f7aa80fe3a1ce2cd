from __future__ import annotations

from dataclasses import replace

import pytest
from fake_voice import FakeVoice

from kazeia_server.errors import InvalidRequest, UnknownVoice
from kazeia_server.settings import Settings, load_settings
from kazeia_server.synthesis.check import check_request
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.voices.aliases import OPENAI_VOICES, resolve_alias
from kazeia_server.voices.backend import BackendInfo

PRESETS = (
    "serena",
    "vivian",
    "uncle_fu",
    "ryan",
    "aiden",
    "ono_anna",
    "sohee",
    "eric",
    "dylan",
)
# What clients check a voice's name against before they send it.
NAMES_OF_THE_API = {
    "alloy",
    "ash",
    "ballad",
    "cedar",
    "coral",
    "echo",
    "fable",
    "marin",
    "nova",
    "onyx",
    "sage",
    "shimmer",
    "verse",
}


def with_voices(*voices: str, default: str | None = None) -> BackendInfo:
    return replace(FakeVoice().info, voices=voices, default_voice=default)


def test_every_name_of_the_api_is_a_preset() -> None:
    info = with_voices(*PRESETS, default="vivian")
    assert set(OPENAI_VOICES) == NAMES_OF_THE_API
    for name in NAMES_OF_THE_API:
        found = resolve_alias(name, info, Settings())
        assert found == OPENAI_VOICES[name]
        assert found in PRESETS
        assert found not in ("dylan", "eric"), "an alias decides on a dialect"


def test_case_does_not_matter_and_the_voice_keeps_its_own() -> None:
    info = with_voices("Vivian", "Uncle_Fu", default="Vivian")
    assert resolve_alias("ONYX", info, Settings()) == "Uncle_Fu"
    assert resolve_alias("Default", info, Settings()) == "Vivian"


def test_without_the_presets_the_default_voice_speaks() -> None:
    info = with_voices("heart", "fable", default="heart")
    assert {resolve_alias(name, info, Settings()) for name in NAMES_OF_THE_API} == {"heart"}


def test_what_is_no_alias() -> None:
    info = with_voices(*PRESETS, default="vivian")
    for name in ("", "nobody", "vivian", "alloy2"):
        assert resolve_alias(name, info, Settings()) is None


def test_voices_without_names() -> None:
    info = with_voices()
    assert resolve_alias("alloy", info, Settings()) == ""
    checked = check_request(SynthesisRequest(text="a", voice="alloy"), info, Settings())
    assert checked.voice is None
    with pytest.raises(UnknownVoice, match="no named voices"):
        check_request(SynthesisRequest(text="a", voice="vivian"), info, Settings())


def test_the_operator_comes_first() -> None:
    info = with_voices(*PRESETS, default="vivian")
    settings = Settings(voice_aliases=("Narrator=Uncle_Fu", "alloy=serena", "boss = onyx"))
    assert resolve_alias("narrator", info, settings) == "uncle_fu"
    assert resolve_alias("alloy", info, settings) == "serena"
    assert resolve_alias("boss", info, settings) == "uncle_fu"
    assert resolve_alias("nova", info, settings) == "vivian"


def test_an_alias_to_nowhere_says_so() -> None:
    info = with_voices("heart", default="heart")
    settings = Settings(voice_aliases=("narrator=vivian",))
    with pytest.raises(UnknownVoice, match=r"'narrator' is set to stand for 'vivian'.* heart"):
        resolve_alias("narrator", info, settings)


@pytest.mark.parametrize("entry", ["narrator", "=vivian", "narrator=", " = "])
def test_a_setting_that_is_no_alias(monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    monkeypatch.setenv("KZTTS_VOICE_ALIASES", f"reader=vivian,{entry}")
    with pytest.raises(InvalidRequest, match=r"KZTTS_VOICE_ALIASES: .*of the form alias=voice"):
        load_settings()


def test_a_real_voice_wins_over_its_alias() -> None:
    info = with_voices("heart", "fable", default="heart")
    settings = Settings(voice_aliases=("heart=fable",))
    for name in ("fable", "heart"):
        checked = check_request(SynthesisRequest(text="a", voice=name), info, settings)
        assert checked.voice == name
