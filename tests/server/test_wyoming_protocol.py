"""Wyoming events: framing with limits, checked requests, what is answered."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from fake_voice import FakeVoice
from hypothesis import given
from hypothesis import strategies as st
from wyoming.event import Event, write_event
from wyoming.info import Info

from kazeia_server.doors.wyoming.messages import (
    EventDecoder,
    IdleTimeout,
    PingData,
    StartData,
    SynthesizeData,
    error_event,
    info_event,
    read_data,
    speech_options,
)
from kazeia_server.errors import (
    EngineFailure,
    InvalidRequest,
    NotReady,
    PayloadTooLarge,
    UnknownVoice,
)

MAX_BYTES = 4096


def encoded(*events: Event) -> bytes:
    """As the library writes them."""
    out = io.BytesIO()
    for event in events:
        write_event(event, out)
    return out.getvalue()


def decoded(data: bytes, sizes: list[int]) -> list[Event]:
    """What a decoder makes of `data` fed in pieces of these sizes."""
    decoder = EventDecoder(MAX_BYTES)
    events = []
    while data:
        size = sizes.pop() if sizes else len(data)
        decoder.feed(data[:size])
        data = data[size:]
        while (event := decoder.next_event()) is not None:
            events.append(event)
    return events


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
events = st.builds(
    Event,
    type=st.text(min_size=1, max_size=20),
    data=st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    payload=st.none() | st.binary(min_size=1, max_size=50),
)


@given(st.lists(events, max_size=4), st.lists(st.integers(1, 40), max_size=200))
def test_any_cut_of_the_bytes_gives_the_same_events(sent: list[Event], sizes: list[int]) -> None:
    assert decoded(encoded(*sent), sizes) == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_a_planned_error(data: bytes) -> None:
    decoder = EventDecoder(MAX_BYTES)
    decoder.feed(data + b"\n")
    try:
        while decoder.next_event() is not None:
            pass
    except InvalidRequest:
        pass


def test_data_in_the_line_and_after_it_are_merged() -> None:
    tail = json.dumps({"text": "new", "voice": None}).encode()
    head = {"type": "x", "data": {"text": "old", "n": 1}, "data_length": len(tail)}
    (event,) = decoded(json.dumps(head).encode() + b"\r\n" + tail, [])
    assert event == Event("x", {"text": "new", "n": 1, "voice": None})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "invalid JSON"),
        (b"hello", "invalid JSON"),
        (b"GET / HTTP/1.1\r", "invalid JSON"),
        (b"\x16\x03\x01\x02\x00", "invalid JSON"),
        (b'{"type": "\xff"}', "invalid JSON"),
        (b'{"type": "\\ud800"}', "invalid JSON"),
        (b"[" * 4000, "invalid JSON"),
        (b"[]", "got list"),
        (b"{}", "must have a type"),
        (b'{"type": 1}', "must have a type"),
        (b'{"type": ""}', "must have a type"),
        (b'{"type": "x", "data": [1]}', "must be a JSON object"),
        (b'{"type": "x", "data_length": "9"}', "data_length must be a whole number"),
        (b'{"type": "x", "data_length": true}', "data_length must be a whole number"),
        (b'{"type": "x", "payload_length": -1}', "payload_length must be a whole number"),
        (b'{"type": "x", "payload_length": 1.5}', "payload_length must be a whole number"),
        (b'{"type": "x", "data_length": 2}\n[]', "the data of an event, a JSON object"),
        (b'{"type": "x", "data_length": 3}\n{"a', "invalid JSON"),
    ],
)
def test_what_is_no_event_is_an_error_that_says_so(line: bytes, says: str) -> None:
    decoder = EventDecoder(MAX_BYTES)
    decoder.feed(line + b"\n")
    with pytest.raises(InvalidRequest, match=says) as caught:
        decoder.next_event()
    assert not isinstance(caught.value, PayloadTooLarge)


@pytest.mark.parametrize(
    "data",
    [
        b"x" * (MAX_BYTES + 1),
        b'{"type": "x' + b"y" * MAX_BYTES + b'"}\n',
        b'{"type": "x", "data_length": 4090}\n',
        b'{"type": "x", "payload_length": 999999999999}\n',
        b'{"type": "x", "data_length": 3000, "payload_length": 3000}\n',
    ],
)
def test_too_much_is_refused_before_it_is_collected(data: bytes) -> None:
    decoder = EventDecoder(MAX_BYTES)
    decoder.feed(data)
    with pytest.raises(PayloadTooLarge, match="4096 bytes"):
        decoder.next_event()


def test_a_line_without_end_is_refused_however_it_drips() -> None:
    decoder = EventDecoder(MAX_BYTES)
    fed = 0
    with pytest.raises(PayloadTooLarge):
        while fed < 2 * MAX_BYTES:
            decoder.feed(b"x")
            fed += 1
            assert decoder.next_event() is None
    assert fed == MAX_BYTES + 1


def test_an_event_of_exactly_the_limit_passes() -> None:
    line = b'{"type":"x","payload_length":4000}\n'
    size = MAX_BYTES - len(line)
    line = line.replace(b"4000", str(size).encode())
    assert len(line) + size == MAX_BYTES
    (event,) = decoded(line + b"p" * size, [100, 3])
    assert event.payload == b"p" * size


def test_events_before_garbage_come_first() -> None:
    decoder = EventDecoder(MAX_BYTES)
    decoder.feed(encoded(Event("ping"), Event("describe")) + b"garbage\n")
    assert decoder.next_event() == Event("ping")
    assert decoder.next_event() == Event("describe")
    with pytest.raises(InvalidRequest):
        decoder.next_event()


# ---- requests ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "synthesize lacks the field 'text'"),
        ({"text": 1}, "text is 1"),
        ({"text": None}, "text"),
        ({"text": "x", "voice": "anna"}, "voice"),
        ({"text": "x", "voice": {"name": 3}}, "voice"),
        ({"text": "x", "text_format": "html"}, "text_format"),
    ],
)
def test_a_wrong_field_is_named(data: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        read_data(Event("synthesize", data), SynthesizeData)


def test_fields_of_later_versions_are_passed_over() -> None:
    data = {"text": "x", "context": {"a": 1}, "mood": "glad", "voice": {"name": "a", "age": 9}}
    asked = read_data(Event("synthesize", data), SynthesizeData)
    assert asked.text == "x"
    assert asked.voice is not None
    assert asked.voice.name == "a"
    assert read_data(Event("ping"), PingData).text is None


@pytest.mark.parametrize(
    ("voice", "name", "language"),
    [
        (None, None, None),
        ({}, None, None),
        ({"name": "Bert"}, "Bert", None),
        ({"name": "bert", "speaker": "Bert"}, "bert", None),
        ({"name": "fake", "speaker": "Bert"}, "Bert", None),
        ({"name": "FAKE"}, None, None),
        ({"name": "", "speaker": ""}, None, None),
        ({"speaker": "anna"}, "anna", None),
        ({"language": "fr_FR"}, None, "fr_FR"),
        ({"name": "anna", "language": "en"}, "anna", "en"),
    ],
)
def test_which_voice_is_meant(
    voice: dict[str, str] | None, name: str | None, language: str | None
) -> None:
    asked = StartData.model_validate({"voice": voice})
    options = speech_options(asked, FakeVoice().info)
    assert (options.voice, options.language, options.clean) == (name, language, None)


def test_a_voice_has_no_other_speaker() -> None:
    asked = StartData.model_validate({"voice": {"name": "anna", "speaker": "Bert"}})
    with pytest.raises(UnknownVoice, match="'anna' has no speaker 'Bert'"):
        speech_options(asked, FakeVoice().info)


def test_an_absurd_name_is_refused() -> None:
    asked = StartData.model_validate({"voice": {"name": "x" * 10_000}})
    with pytest.raises(InvalidRequest, match="voice") as caught:
        speech_options(asked, FakeVoice().info)
    assert len(str(caught.value)) < 300


def test_ssml_is_always_cleaned() -> None:
    asked = StartData.model_validate({"text_format": "ssml"})
    assert speech_options(asked, FakeVoice().info).clean is True


# ---- answers -----------------------------------------------------------------


def test_info_lists_the_voices_as_home_assistant_reads_them() -> None:
    event = info_event(FakeVoice().info)
    assert event.type == "info"
    assert set(event.data) >= {"asr", "tts", "handle", "intent", "wake", "mic", "snd"}
    info = Info.from_event(Event(event.type, json.loads(json.dumps(event.data))))
    (program,) = info.tts
    assert (program.name, program.installed) == ("kazeia", True)
    assert program.supports_synthesize_streaming
    assert program.description == "Kazeia: Qwen3-TTS model fake (custom_voice)"
    assert program.version
    assert [voice.name for voice in program.voices] == ["anna", "Bert"]
    for voice in program.voices:
        assert voice.installed
        assert voice.languages == ["en", "fr"]
        assert voice.attribution.name == "Qwen"
    assert info.asr == info.wake == info.handle == []


def test_every_language_of_qwen_has_a_tag() -> None:
    names = "chinese english german italian portuguese spanish japanese korean french russian"
    info = replace(FakeVoice().info, languages=(*names.split(), "martian"))
    (voice, _) = Info.from_event(info_event(info)).tts[0].voices
    assert voice.languages == ["zh", "en", "de", "it", "pt", "es", "ja", "ko", "fr", "ru"]


def test_a_model_without_named_voices_is_one_voice() -> None:
    info = replace(FakeVoice().info, voices=(), default_voice=None, source="built-in")
    (program,) = Info.from_event(info_event(info)).tts
    (voice,) = program.voices
    assert voice.name == "fake"
    asked = StartData.model_validate({"voice": {"name": voice.name}})
    assert speech_options(asked, info).voice is None


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        (InvalidRequest("bad"), "bad", "invalid_request"),
        (NotReady("wait"), "wait", "loading"),
        (EngineFailure("broke"), "broke", "engine_error"),
        (IdleTimeout("idle"), "idle", "idle_timeout"),
        (ZeroDivisionError("secret"), "internal error; see the server's log", "internal_error"),
    ],
)
def test_errors_have_a_text_and_a_code(error: Exception, text: str, code: str) -> None:
    assert error_event(error) == Event("error", {"text": text, "code": code})
