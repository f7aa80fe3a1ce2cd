from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from fake_voice import FakeVoice
from hypothesis import given
from hypothesis import strategies as st

from kazeia_server.doors.fields import SpeechOptions, parse_json
from kazeia_server.doors.speech.routes import SynthesizeBody
from kazeia_server.errors import InvalidRequest, TextTooLong, UnknownLanguage, UnknownVoice
from kazeia_server.settings import Settings
from kazeia_server.synthesis.check import check_request
from kazeia_server.synthesis.request import SynthesisRequest

INFO = FakeVoice().info


def test_every_field_arrives() -> None:
    fields: dict[str, Any] = {
        "voice": "anna",
        "language": "french",
        "instruct": "softly",
        "seed": 2**63 - 1,
        "temperature": 0,
        "top_k": 3,
        "top_p": 0.5,
        "repetition_penalty": 1.2,
        "cp_temperature": 0.1,
        "cp_top_k": 7,
        "cp_top_p": 0.25,
        "text_mode": "whole",
        "max_frames": 12,
        "chunk": 0,
        "speed": 1.5,
        "clean": False,
        "split": "sentence",
    }
    body = parse_json(json.dumps({"text": "Hi.", **fields}).encode(), SynthesizeBody)
    request = check_request(body.request(body.text, Settings()), INFO, Settings())
    assert request == SynthesisRequest(text="Hi.", **fields)


def test_settings_fill_what_is_left_out() -> None:
    settings = Settings(temp=0.3, topk=4, topp=0.5, repp=1.1, cp_temp=0.2, stream_chunk=5)
    request = SpeechOptions(top_k=9).request("Hi.", settings)
    assert (request.temperature, request.top_k, request.top_p) == (0.3, 9, 0.5)
    assert (request.repetition_penalty, request.cp_temperature, request.chunk) == (1.1, 0.2, 5)


@pytest.mark.parametrize(
    ("body", "expected", "param"),
    [
        (b"", "not valid JSON", None),
        (b"{", "not valid JSON", None),
        (b"\xff\xfe", "not valid JSON", None),
        (b"[]", "JSON object", None),
        (b'"text"', "JSON object", None),
        (b"{}", "lacks the field 'text'", "text"),
        (b'{"text": 5}', "valid string", "text"),
        (b'{"text": null}', "valid string", "text"),
        (b'{"text": "\\ud800"}', "not valid JSON", None),
        (b'{"text": "a", "temperature": NaN}', "finite", "temperature"),
        (b'{"text": "a", "temperature": Infinity}', "finite|less than", "temperature"),
        (b'{"text": "a", "temperature": 1e999}', "finite|less than", "temperature"),
        (b'{"text": "a", "temperature": -0.1}', "greater than or equal to 0", "temperature"),
        (b'{"text": "a", "temperature": "1"}', "valid number", "temperature"),
        (b'{"text": "a", "top_k": 1.5}', "valid integer", "top_k"),
        (b'{"text": "a", "top_k": true}', "valid integer", "top_k"),
        (b'{"text": "a", "top_p": 0}', "greater than 0", "top_p"),
        (b'{"text": "a", "seed": -1}', "greater than or equal to 0", "seed"),
        (b'{"text": "a", "seed": 1' + b"0" * 40 + b"}", "less than", "seed"),
        (b'{"text": "a", "seed": 1' + b"0" * 6000 + b"}", "JSON|less than", None),
        (b'{"text": "a", "max_frames": 0}', "greater than or equal to 1", "max_frames"),
        (b'{"text": "a", "chunk": "often"}', "'auto', or", "chunk"),
        (b'{"text": "a", "chunk": -1}', "greater than or equal to 0", "chunk"),
        (b'{"text": "a", "text_mode": "half"}', "'auto', 'whole' or 'streaming'", "text_mode"),
        (b'{"text": "a", "voice": ""}', "at least 1 character", "voice"),
        (b'{"text": "a", "vioce": "x"}', "no field 'vioce'; it knows voice,", "vioce"),
        (b"[" * 200_000, "not valid JSON", None),
        (b'{"text": ' + b'{"a": ' * 10_000, "not valid JSON", None),
    ],
)
def test_bad_bodies_say_what_was_expected(body: bytes, expected: str, param: str | None) -> None:
    with pytest.raises(InvalidRequest, match=expected) as caught:
        parse_json(body, SynthesizeBody)
    if param is not None:
        assert caught.value.param == param
    assert len(str(caught.value)) < 600
    str(caught.value).encode("ascii")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_body_or_a_clear_error(body: bytes) -> None:
    with suppress(InvalidRequest):
        assert parse_json(body, SynthesizeBody).text is not None


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u200b", "\ufeff\u202e"])
def test_empty_text(text: str) -> None:
    with pytest.raises(InvalidRequest, match="text is empty"):
        check_request(SynthesisRequest(text=text), INFO, Settings())


@pytest.mark.parametrize(
    ("text", "expected"), [("a\0b", "NUL"), ("a\ud800", "surrogate"), ("\udc00b", "surrogate")]
)
def test_text_that_is_no_text(text: str, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        check_request(SynthesisRequest(text=text, clean=False), INFO, Settings())
    check_request(SynthesisRequest(text=text), INFO, Settings())  # will be cleaned away
    with pytest.raises(InvalidRequest, match=expected):
        check_request(SynthesisRequest(text="a", instruct=text), INFO, Settings())


def test_long_text_is_refused_with_both_numbers() -> None:
    check_request(SynthesisRequest(text="a" * 20_000), INFO, Settings())
    with pytest.raises(TextTooLong, match="100000 characters; at most 20000"):
        check_request(SynthesisRequest(text="a" * 100_000), INFO, Settings())


def test_names_are_found_whatever_their_case() -> None:
    request = SynthesisRequest(text="a", voice="BERT", language="French")
    checked = check_request(request, INFO, Settings())
    assert (checked.voice, checked.language) == ("Bert", "french")
    spaced = SynthesisRequest(text="a", voice=" Bert\t")  # from a list cut at its commas
    assert check_request(spaced, INFO, Settings()).voice == "Bert"
    assert check_request(SynthesisRequest(text="a"), INFO, Settings()).voice == "anna"


@pytest.mark.parametrize("code", ["fr", "FR", "fr-CA", "fr_FR"])
def test_language_codes(code: str) -> None:
    request = SynthesisRequest(text="a", language=code)
    assert check_request(request, INFO, Settings()).language == "french"


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UnknownVoice, match="anna, Bert"):
        check_request(SynthesisRequest(text="a", voice="../etc"), INFO, Settings())
    with pytest.raises(UnknownLanguage, match="auto, english, french"):
        check_request(SynthesisRequest(text="a", language="de"), INFO, Settings())
    nameless = FakeVoice(voices=()).info
    with pytest.raises(UnknownVoice, match="no named voices"):
        check_request(SynthesisRequest(text="a", voice="x"), nameless, Settings())


def test_audio_is_bounded() -> None:
    settings = Settings(max_audio_s=8.0)  # 100 frames of 80 ms
    assert check_request(SynthesisRequest(text="a"), INFO, settings).max_frames == 100
    wish = SynthesisRequest(text="a", max_frames=7)
    assert check_request(wish, INFO, settings).max_frames == 7
    assert check_request(SynthesisRequest(text="a"), INFO, Settings()).max_frames == 22_500
