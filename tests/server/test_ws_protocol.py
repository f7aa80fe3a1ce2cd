from __future__ import annotations

import json
from typing import Any

import pytest
from fake_voice import FakeVoice
from hypothesis import given
from hypothesis import strategies as st

from kazeia_server.backend import SynthesisStats
from kazeia_server.errors import Busy, EngineFailure, UnknownVoice
from kazeia_server.ws_protocol import (
    Action,
    Close,
    Protocol,
    SendAudio,
    SendMessage,
    SessionConfig,
    Speak,
    Stop,
)

INFO = FakeVoice().info
STATS = SynthesisStats(
    ended="eos", audio_s=0.16, frames=2, n_chunks=2, ttfb_s=0.1, rtf=0.4, stages={"cp": 0.01}
)
PCM = b"\1\0" * 10


def new(max_text_chars: int = 100, max_message_bytes: int = 2000) -> Protocol:
    return Protocol(max_text_chars=max_text_chars, max_message_bytes=max_message_bytes)


def send(protocol: Protocol, kind: str, **fields: Any) -> list[Action]:
    return protocol.receive_text(json.dumps({"type": kind, **fields}))


def say(protocol: Protocol, text: str = "Hello.") -> list[Action]:
    assert send(protocol, "input.text", text=text) == []
    return send(protocol, "input.done")


def messages(actions: list[Action]) -> list[dict[str, Any]]:
    return [action.message for action in actions if isinstance(action, SendMessage)]


def kinds(actions: list[Action]) -> list[str]:
    return [
        action.message["type"] if isinstance(action, SendMessage) else type(action).__name__
        for action in actions
    ]


def only_error(actions: list[Action]) -> dict[str, Any]:
    assert kinds(actions) == ["error"]
    return messages(actions)[0]


def test_an_utterance_from_config_to_done() -> None:
    protocol = new()
    assert send(protocol, "session.config", voice="Bert", seed=5) == []
    assert send(protocol, "input.text", text="Hel") == []
    assert send(protocol, "input.text", text="lo.") == []
    (speak,) = send(protocol, "input.done")
    assert isinstance(speak, Speak)
    assert (speak.job.index, speak.job.text) == (0, "Hello.")
    assert (speak.job.options.voice, speak.job.options.seed) == ("Bert", 5)

    first = protocol.chunk(0, PCM, INFO, "Bert")
    assert kinds(first) == ["audio.start", "SendAudio"]
    start = messages(first)[0]
    assert start["sample_rate"] == 24_000
    assert (start["format"], start["encoding"], start["channels"]) == ("pcm", "s16le", 1)
    assert (start["utterance_index"], start["sentence_text"]) == (0, "Hello.")
    assert protocol.chunk(0, PCM, INFO, "Bert") == [SendAudio(PCM)]

    done = protocol.finished(0, STATS, INFO, "Bert")
    assert kinds(done) == ["audio.done", "session.done"]
    assert messages(done)[0] == {
        "type": "audio.done",
        "utterance_index": 0,
        "sentence_index": 0,
        "ended": "eos",
        "ttfb_s": 0.1,
        "rtf": 0.4,
        "n_chunks": 2,
        "audio_s": 0.16,
        "frames": 2,
        "total_bytes": 7680,
        "stages": {"cp": 0.01},
        "warnings": [],
        "error": False,
    }
    assert not protocol.busy


def test_several_utterances_keep_their_config_and_their_order() -> None:
    protocol = new()
    send(protocol, "session.config", voice="anna")
    assert kinds(say(protocol, "one")) == ["Speak"]
    send(protocol, "session.config", language="french")
    assert say(protocol, "two") == []
    assert say(protocol, "three") == []
    *_, second = protocol.finished(0, STATS, INFO, None)
    assert isinstance(second, Speak)
    assert (second.job.index, second.job.text) == (1, "two")
    # A configuration replaces the one before as a whole.
    assert (second.job.options.voice, second.job.options.language) == (None, "french")
    *_, third = protocol.failed(1, EngineFailure("x"))
    assert isinstance(third, Speak)
    assert third.job.text == "three"


def test_no_audio_after_cancelled() -> None:
    protocol = new()
    say(protocol)
    protocol.chunk(0, PCM, INFO, None)
    actions = send(protocol, "input.cancel")
    assert kinds(actions) == ["Stop", "audio.cancelled"]
    assert actions[0] == Stop(0)
    assert messages(actions)[0]["utterance_index"] == 0
    assert protocol.chunk(0, PCM, INFO, None) == []
    assert protocol.finished(0, STATS, INFO, None) == []
    assert protocol.failed(0, EngineFailure("x")) == []
    (speak,) = say(protocol)
    assert isinstance(speak, Speak)
    assert speak.job.index == 1
    assert protocol.chunk(0, PCM, INFO, None) == []
    assert kinds(protocol.chunk(1, PCM, INFO, None)) == ["audio.start", "SendAudio"]


def test_cancel_covers_what_waits_and_what_was_typed() -> None:
    protocol = new()
    say(protocol, "one")
    say(protocol, "two")
    send(protocol, "input.text", text="three")
    actions = send(protocol, "input.cancel")
    assert kinds(actions) == ["Stop", "audio.cancelled", "audio.cancelled"]
    assert [m["utterance_index"] for m in messages(actions)] == [0, 1]
    assert "without text" in only_error(send(protocol, "input.done"))["message"]


def test_cancel_with_nothing_to_cancel_is_answered() -> None:
    actions = send(new(), "input.cancel")
    assert kinds(actions) == ["audio.cancelled"]
    assert messages(actions)[0]["utterance_index"] is None


def test_close_waits_for_what_was_asked_for() -> None:
    protocol = new()
    say(protocol)
    assert send(protocol, "session.close") == []
    assert "after session.close" in only_error(send(protocol, "input.text", text="x"))["message"]
    done = protocol.finished(0, STATS, INFO, None)
    assert kinds(done) == ["audio.start", "audio.done", "session.done", "session.done", "Close"]
    assert messages(done)[-1] == {
        "type": "session.done",
        "utterance_index": None,
        "total_utterances": 1,
    }
    assert done[-1] == Close(1000, "session.close")
    assert send(protocol, "input.text", text="x") == []


def test_close_then_cancel_ends_at_once() -> None:
    protocol = new()
    say(protocol)
    send(protocol, "session.close")
    actions = send(protocol, "input.cancel")
    assert kinds(actions) == ["Stop", "audio.cancelled", "session.done", "Close"]


def test_close_of_an_idle_session() -> None:
    assert kinds(send(new(), "session.close")) == ["session.done", "Close"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("", "invalid JSON"),
        ("hello", "invalid JSON"),
        ("[1]", "expected a JSON object, got list"),
        ("null", "expected a JSON object, got NoneType"),
        ("{}", "session.config, input.text, .*; got nothing"),
        ('{"type": 5}', "got 5"),
        ('{"type": "input.flush"}', "got 'input.flush'"),
        ('{"type": "input.text"}', "lacks the field 'text'"),
        ('{"type": "input.text", "text": 5}', "valid string"),
        ('{"type": "input.text", "text": "\\ud800"}', "invalid JSON"),
        ('{"type": "input.text", "text": "a", "more": 1}', "no field 'more'"),
        ('{"type": "input.done", "text": "a"}', "no field 'text'"),
        ('{"type": "input.done"}', "expected input.text"),
        ('{"type": "session.config", "temperature": NaN}', "finite"),
        ('{"type": "session.config", "top_k": -1}', "greater than or equal"),
        ('{"type": "session.config", "pitch": 1}', "no field 'pitch'; it knows type, voice"),
        ('{"type": "session.config", "response_format": "mp3"}', "'pcm'"),
        ("[" * 1000, "invalid JSON"),
    ],
)
def test_bad_messages_get_one_clear_error(data: str, expected: str) -> None:
    protocol = new()
    error = only_error(protocol.receive_text(data))
    with pytest.raises(AssertionError, match=expected):
        raise AssertionError(error["message"])
    json.dumps(error, allow_nan=False).encode()
    assert kinds(say(protocol)) == ["Speak"]


def test_binary_and_oversized_frames() -> None:
    protocol = new(max_message_bytes=1000)
    assert "got a binary frame of 7 bytes" in only_error(protocol.receive_bytes(7))["message"]
    error = only_error(send(protocol, "input.text", text="é" * 500))
    assert error["code"] == "payload_too_large"
    assert "1000 bytes" in error["message"]
    assert kinds(say(protocol)) == ["Speak"]


def test_too_much_text_is_said_once_and_its_rest_not_spoken() -> None:
    protocol = new(max_text_chars=10)
    assert send(protocol, "input.text", text="123456") == []
    error = only_error(send(protocol, "input.text", text="789012"))
    assert (error["code"], error["utterance_index"]) == ("text_too_long", 0)
    assert send(protocol, "input.text", text="end.") == []
    assert send(protocol, "input.done") == []
    (speak,) = say(protocol, "next")
    assert isinstance(speak, Speak)
    assert (speak.job.index, speak.job.text) == (1, "next")


def test_every_done_takes_an_index() -> None:
    protocol = new()
    assert only_error(send(protocol, "input.done"))["utterance_index"] == 0
    (speak,) = say(protocol)
    assert isinstance(speak, Speak)
    assert speak.job.index == 1


def test_a_flood_of_utterances_is_bounded() -> None:
    protocol = new()
    say(protocol)
    answers = [say(protocol, str(n)) for n in range(100)]
    refused = [messages(answer)[0] for answer in answers if answer]
    assert len(refused) == 84
    assert {message["code"] for message in refused} == {"busy"}


def test_errors_of_synthesis_keep_the_session() -> None:
    protocol = new()
    say(protocol)
    error = only_error(protocol.failed(0, Busy("later", retry_after_s=3)))
    assert (error["code"], error["retry_after_s"], error["utterance_index"]) == ("busy", 3, 0)
    assert kinds(say(protocol)) == ["Speak"]


def test_a_refused_configuration_changes_nothing() -> None:
    def check(config: SessionConfig) -> None:
        if config.voice == "nobody":
            raise UnknownVoice("unknown voice", param="voice")

    protocol = Protocol(max_text_chars=100, max_message_bytes=1000, check=check)
    send(protocol, "session.config", voice="anna", instructions="softly")
    assert only_error(send(protocol, "session.config", voice="nobody"))["param"] == "voice"
    (speak,) = say(protocol)
    assert isinstance(speak, Speak)
    assert (speak.job.options.voice, speak.job.options.instruct) == ("anna", "softly")


def test_idle() -> None:
    protocol = new()
    say(protocol)
    assert protocol.idle() == []
    protocol.finished(0, STATS, INFO, None)
    actions = protocol.idle()
    assert kinds(actions) == ["error", "Close"]
    assert messages(actions)[0]["code"] == "idle_timeout"
    assert protocol.idle() == []


INPUTS = st.sampled_from(
    ["session.config", "input.text", "input.done", "input.cancel", "session.close", "nonsense"]
)
EVENTS = st.sampled_from(["chunk", "finished", "failed"])


@given(st.lists(st.one_of(INPUTS, EVENTS), max_size=60))
def test_whatever_comes_every_utterance_ends_exactly_once(steps: list[str]) -> None:
    protocol = new()
    speaking: int | None = None
    asked = 0
    ended: list[int] = []
    started: list[int] = []
    closed = False
    for step in steps:
        if step == "chunk":
            actions = protocol.chunk(speaking or 0, PCM, INFO, None)
        elif step == "finished":
            actions = protocol.finished(speaking or 0, STATS, INFO, None)
        elif step == "failed":
            actions = protocol.failed(speaking or 0, EngineFailure("x"))
        else:
            fields = {"text": "a"} if step == "input.text" else {}
            actions = send(protocol, step, **fields)
        assert not (closed and actions)
        for action in actions:
            if isinstance(action, Speak):
                assert speaking is None or speaking in ended
                speaking = action.job.index
                asked += 1
            elif isinstance(action, SendAudio):
                assert speaking in started
                assert speaking not in ended
            elif isinstance(action, Close):
                closed = True
            elif isinstance(action, SendMessage):
                index = action.message.get("utterance_index")
                kind = action.message["type"]
                if kind == "audio.start":
                    assert index not in started
                    started.append(index)
                if index is not None and kind in ("session.done", "audio.cancelled", "error"):
                    assert index not in ended
                    ended.append(index)
    assert not closed or len(ended) >= asked
