from __future__ import annotations

import json
from typing import Any

import pytest
from fake_voice import FakeVoice
from hypothesis import given
from hypothesis import strategies as st

from kazeia_server.doors.ws_messages import SessionConfig
from kazeia_server.doors.ws_protocol import (
    Action,
    Close,
    Mark,
    Protocol,
    SendAudio,
    SendMessage,
    Speak,
    Stop,
    Write,
)
from kazeia_server.errors import Busy, EngineFailure, UnknownVoice
from kazeia_server.synthesis.backend import SynthesisStats

INFO = FakeVoice().info
STATS = SynthesisStats(
    ended="eos", audio_s=0.16, frames=2, n_chunks=2, ttfb_s=0.1, rtf=0.4, stages={"cp": 0.01}
)
PCM = b"\1\0" * 10

NOT_ACCEPTED = "the API key that was sent is not accepted"


def new(max_text_chars: int = 100, max_message_bytes: int = 2000) -> Protocol:
    return Protocol(max_text_chars=max_text_chars, max_message_bytes=max_message_bytes)


def send(protocol: Protocol, kind: str, **fields: Any) -> list[Action]:
    return protocol.receive_text(json.dumps({"type": kind, **fields}))


def say(protocol: Protocol, text: str = "Hello.") -> list[Action]:
    """Write a whole utterance; Write actions of one that is being spoken are left out."""
    actions = [*send(protocol, "input.text", text=text), *send(protocol, "input.done")]
    return [action for action in actions if not isinstance(action, Write)]


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
    assert send(protocol, "input.text", text=" ") == []
    (speak,) = send(protocol, "input.text", text="Hel")
    assert isinstance(speak, Speak)
    job = speak.job
    assert (job.index, job.written, job.complete) == (0, [" Hel"], False)
    assert (job.config.voice, job.config.seed) == ("Bert", 5)
    assert send(protocol, "input.text", text="lo.") == [Write(job)]
    assert send(protocol, "input.flush") == [Write(job)]
    assert send(protocol, "input.done") == [Write(job)]
    assert job.written == [" Hel", "lo.", Mark.FLUSH, Mark.FINISH]
    assert (job.text, job.complete) == (" Hello.", True)

    first = protocol.chunk(0, PCM, INFO, "Bert")
    assert kinds(first) == ["audio.start", "SendAudio"]
    start = messages(first)[0]
    assert start["sample_rate"] == 24_000
    assert (start["format"], start["encoding"], start["channels"]) == ("pcm", "s16le", 1)
    assert (start["utterance_index"], start["sentence_text"]) == (0, " Hello.")
    assert protocol.chunk(0, PCM, INFO, "Bert") == [SendAudio(PCM)]

    done = protocol.finished(0, STATS, INFO, "Bert")
    assert kinds(done) == ["audio.done", "session.done"]
    assert messages(done)[0] == {
        "type": "audio.done",
        "utterance_index": 0,
        "sentence_index": 0,
        "ended": "eos",
        "ttfb_s": 0.1,
        "voice_ttfb_s": None,
        "rtf": 0.4,
        "n_chunks": 2,
        "audio_s": 0.16,
        "frames": 2,
        "total_bytes": 2 * len(PCM),
        "pieces": 1,
        "retries": 0,
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
    assert (second.job.config.voice, second.job.config.language) == (None, "french")
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


def test_what_is_written_ahead_is_kept_for_its_turn() -> None:
    protocol = new()
    say(protocol, "one")
    assert send(protocol, "input.text", text="two, ") == []
    assert send(protocol, "input.text", text="and ") == []
    *_, speak = protocol.finished(0, STATS, INFO, None)
    assert isinstance(speak, Speak)
    assert speak.job.written == ["two, ", "and "]
    assert send(protocol, "input.text", text="more.") == [Write(speak.job)]


def test_an_utterance_that_ends_before_its_text_takes_the_rest_of_it_along() -> None:
    for end in ("finished", "failed"):
        protocol = new()
        send(protocol, "input.text", text="too much ")
        if end == "finished":
            protocol.finished(0, STATS, INFO, None)
        else:
            protocol.failed(0, EngineFailure("x"))
        assert send(protocol, "input.text", text="of it.") == []
        assert send(protocol, "input.done") == []
        (speak,) = say(protocol, "next")
        assert isinstance(speak, Speak)
        assert (speak.job.index, speak.job.text) == (1, "next")


def test_cancel_of_open_text_lets_the_next_begin() -> None:
    protocol = new()
    send(protocol, "input.text", text="interrupted ")
    assert kinds(send(protocol, "input.cancel")) == ["Stop", "audio.cancelled"]
    (speak,) = say(protocol, "next")
    assert isinstance(speak, Speak)
    assert speak.job.index == 1


def test_draining_lets_the_open_utterance_end_and_nothing_begin() -> None:
    protocol = new()
    (speak,) = send(protocol, "input.text", text="one ")
    assert isinstance(speak, Speak)
    assert protocol.drain() == []
    assert send(protocol, "input.text", text="two.") == [Write(speak.job)]
    assert send(protocol, "input.done") == [Write(speak.job)]
    error = only_error(send(protocol, "input.text", text="next"))
    assert error["code"] == "shutting_down"
    done = protocol.finished(0, STATS, INFO, None)
    assert done[-1] == Close(1012, "the server is shutting down")
    assert kinds(new().drain()) == ["session.done", "Close"]


def test_a_key_comes_first_where_one_is_needed() -> None:
    def locked() -> Protocol:
        return Protocol(max_text_chars=9, max_message_bytes=99, check_key=lambda key: key == "k")

    for message in ("input.text", "session.config", "ping", "input.done"):
        protocol = locked()
        actions = send(protocol, message, **({"text": "a"} if message == "input.text" else {}))
        assert kinds(actions) == ["error", "Close"]
        assert actions[-1] == Close(1008, "an API key is required: send session.auth with it first")
        assert send(protocol, "session.auth", key="k") == []
    actions = send(locked(), "session.auth", key="wrong")
    assert messages(actions)[0]["message"] == NOT_ACCEPTED
    assert actions[-1] == Close(1008, NOT_ACCEPTED)
    protocol = locked()
    assert kinds(send(protocol, "session.auth", key="k")) == ["session.authorized"]
    assert kinds(say(protocol)) == ["Speak"]
    assert kinds(send(new(), "session.auth", key="any")) == ["session.authorized"]


def test_without_a_key_the_wait_is_not_an_idle_session() -> None:
    protocol = Protocol(max_text_chars=9, max_message_bytes=99, check_key=lambda key: False)
    assert protocol.needs_key
    actions = protocol.idle()
    assert messages(actions)[0]["code"] == "invalid_api_key"
    assert actions[-1] == Close(1008, "an API key is required: no session.auth came")


def test_a_connection_that_brought_a_wrong_key_is_told_so() -> None:
    def locked() -> Protocol:
        return Protocol(
            max_text_chars=9, max_message_bytes=99, check_key=lambda key: False, key_given=True
        )

    assert messages(send(locked(), "ping"))[0]["message"] == NOT_ACCEPTED
    assert messages(locked().idle())[0]["message"] == NOT_ACCEPTED


def test_flushes_of_nothing_take_no_room() -> None:
    protocol = new()
    (speak,) = send(protocol, "input.text", text="a")
    assert isinstance(speak, Speak)
    for _ in range(1000):
        send(protocol, "input.flush")
    assert speak.job.written == ["a", Mark.FLUSH]
    assert speak.job.take() == ["a", Mark.FLUSH]
    assert speak.job.written == []


def test_fields_of_other_servers_are_understood() -> None:
    protocol = new()
    fields = {
        "model": "Qwen/Qwen3-TTS",
        "task_type": "CustomVoice",
        "stream_audio": True,
        "split_granularity": "clause",
        "instructions": "softly",
        "max_new_tokens": 77,
        "non_streaming_mode": True,
        "initial_codec_chunk_frames": 3,
        "ref_audio": None,
        "x_vector_only_mode": False,
    }
    assert send(protocol, "session.config", **fields) == []
    (speak,) = say(protocol)
    assert isinstance(speak, Speak)
    config = speak.job.config
    assert (config.split, config.instruct, config.max_frames) == ("sentence", "softly", 77)
    assert (config.text_mode, config.chunk, config.task_type) == ("whole", 3, "CustomVoice")
    for field, value in {"ref_audio": "http://x", "speaker_embedding": [1.0]}.items():
        error = only_error(send(protocol, "session.config", **{field: value}))
        assert error["param"] == field
        assert "not supported" in error["message"]
    assert (
        "none, sentence"
        in only_error(send(protocol, "session.config", split_granularity="word"))["message"]
    )


def test_ping() -> None:
    assert kinds(send(new(), "ping")) == ["pong"]


def test_other_formats_are_named_in_audio_start() -> None:
    protocol = new()
    send(protocol, "session.config", response_format="mp3", sample_rate=16_000)
    say(protocol)
    (start,) = messages(protocol.chunk(0, b"abc", INFO, None))
    assert (start["format"], start["encoding"], start["sample_rate"]) == ("mp3", None, 16_000)
    assert start["content_type"] == "audio/mpeg"


def test_cancel_covers_what_waits_and_what_was_typed() -> None:
    protocol = new()
    say(protocol, "one")
    say(protocol, "two")
    send(protocol, "input.text", text="three")
    actions = send(protocol, "input.cancel")
    assert kinds(actions) == ["Stop", *["audio.cancelled"] * 3]
    assert [m["utterance_index"] for m in messages(actions)] == [0, 1, 2]
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
        ('{"type": "input.text"}', "lacks the field 'text'"),
        ('{"type": "input.text", "text": 5}', "valid string"),
        ('{"type": "input.text", "text": "\\ud800"}', "invalid JSON"),
        ('{"type": "input.text", "text": "a", "more": 1}', "no field 'more'"),
        ('{"type": "input.done", "text": "a"}', "no field 'text'"),
        ('{"type": "input.done"}', "expected input.text"),
        ('{"type": "session.config", "temperature": NaN}', "finite"),
        ('{"type": "session.config", "top_k": -1}', "greater than or equal"),
        ('{"type": "session.config", "pitch": 1}', "no field 'pitch'; it knows type, voice"),
        ('{"type": "session.config", "response_format": "midi"}', "'pcm'"),
        ('{"type": "session.config", "sample_rate": 1}', "greater than or equal to 8000"),
        ('{"type": "session.config", "speed": 5}', "less than or equal to 4"),
        ('{"type": "session.config", "split_granularity": []}', "expected none, sentence"),
        ('{"type": "session.config", "split_granularity": {"a": []}}', "expected none"),
        ('{"type": "session.config", "non_streaming_mode": []}', "expected true or false"),
        ('{"type": "session.config", "lang_code": {}}', "valid string"),
        ('{"type": "session.config", "task_type": []}', "'CustomVoice'"),
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


def test_a_fault_of_the_server_does_not_cost_the_session() -> None:
    def check(config: SessionConfig) -> None:
        raise TypeError("a bug")

    protocol = Protocol(max_text_chars=100, max_message_bytes=1000, check=check)
    error = only_error(send(protocol, "session.config", voice="anna"))
    assert error["code"] == "internal_error"
    assert "a bug" not in error["message"]
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
    assert kinds(send(protocol, "input.text", text="123456")) == ["Speak"]
    stop, *told = send(protocol, "input.text", text="789012")
    assert stop == Stop(0)
    error = only_error(told)
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
    assert (speak.job.config.voice, speak.job.config.instruct) == ("anna", "softly")


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
    ["session.config", "input.text", "input.flush", "input.done", "input.cancel", "session.close"]
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
