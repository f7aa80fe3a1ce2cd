from __future__ import annotations

import json
from typing import Any

import pytest
from fake_voice import FakeVoice
from hypothesis import given
from hypothesis import strategies as st

from kazeia_server.doors.actions import (
    Action,
    Begin,
    Close,
    Drop,
    End,
    Flush,
    Push,
    SendAudio,
    SendMessage,
)
from kazeia_server.doors.speech.messages import SessionConfig
from kazeia_server.doors.speech.protocol import SpeechProtocol
from kazeia_server.errors import Busy, EngineFailure, UnknownVoice
from kazeia_server.ops.auth import KEY_TIMEOUT_S
from kazeia_server.settings import Settings
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.voices.backend import SynthesisStats

INFO = FakeVoice().info
STATS = SynthesisStats(
    ended="eos", audio_s=0.16, frames=2, n_chunks=2, ttfb_s=0.1, rtf=0.4, stages={"cp": 0.01}
)
PCM = b"\1\0" * 10

NOT_ACCEPTED = "the API key that was sent is not accepted"


def new(max_text_chars: int = 100, max_message_bytes: int = 2000, **options: Any) -> SpeechProtocol:
    settings = Settings(
        max_text_chars=max_text_chars, max_message_bytes=max_message_bytes, idle_timeout_s=60
    )
    return SpeechProtocol(settings, **{"now": 0.0, **options})


def send(protocol: SpeechProtocol, kind: str, **fields: Any) -> list[Action]:
    return protocol.receive_text(json.dumps({"type": kind, **fields}), 0.0)


def say(protocol: SpeechProtocol, text: str = "Hello.") -> list[Action]:
    """Write a whole utterance; what is said of its text is left out."""
    actions = [*send(protocol, "input.text", text=text), *send(protocol, "input.done")]
    return [action for action in actions if not isinstance(action, Push | End)]


def chunk(protocol: SpeechProtocol, index: int, voice: str | None = None) -> list[Action]:
    """An utterance sounds."""
    return [*protocol.begun(index, INFO, voice), *protocol.audio(index, PCM)]


def finish(protocol: SpeechProtocol, index: int) -> list[Action]:
    """An utterance comes to its end."""
    return [*protocol.begun(index, INFO, None), *protocol.ended(index, STATS, 0.0)]


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
    begin, push = send(protocol, "input.text", text="Hel")
    assert isinstance(begin, Begin)
    assert (begin.index, begin.after, push) == (0, None, Push(0, " Hel"))
    assert (begin.request.voice, begin.request.seed) == ("Bert", 5)
    assert send(protocol, "input.text", text="lo.") == [Push(0, "lo.")]
    assert send(protocol, "input.flush") == [Flush(0)]
    assert send(protocol, "input.done") == [End(0)]

    first = chunk(protocol, 0, "Bert")
    assert kinds(first) == ["audio.start", "SendAudio"]
    start = messages(first)[0]
    assert start["sample_rate"] == 24_000
    assert (start["format"], start["encoding"], start["channels"]) == ("pcm", "s16le", 1)
    assert (start["utterance_index"], start["sentence_text"]) == (0, " Hello.")
    assert start["voice"] == "Bert"
    assert protocol.audio(0, PCM) == [SendAudio(PCM)]

    done = protocol.ended(0, STATS, 0.0)
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
    assert protocol.ended(0, STATS, 0.0) == []


def test_several_utterances_keep_their_config_and_their_order() -> None:
    protocol = new()
    send(protocol, "session.config", voice="anna")
    assert say(protocol, "one") == [Begin(0, SynthesisRequest(text="", voice="anna"), None)]
    send(protocol, "session.config", language="french")
    # A configuration replaces the one before as a whole.
    french = SynthesisRequest(text="", language="french")
    assert say(protocol, "two") == [Begin(1, french, 0)]
    assert send(protocol, "input.text", text="three") == [Begin(2, french, 1), Push(2, "three")]
    assert chunk(protocol, 1) == []  # it is not its turn
    assert kinds(finish(protocol, 0)) == ["audio.start", "audio.done", "session.done"]
    assert kinds(protocol.failed(1, EngineFailure("x"), 0.0)) == ["error"]
    assert kinds(chunk(protocol, 2)) == ["audio.start", "SendAudio"]


def test_no_audio_after_cancelled() -> None:
    protocol = new()
    say(protocol)
    chunk(protocol, 0)
    actions = send(protocol, "input.cancel")
    assert kinds(actions) == ["Drop", "audio.cancelled"]
    assert actions[0] == Drop(0)
    assert messages(actions)[0]["utterance_index"] == 0
    assert chunk(protocol, 0) == []
    assert finish(protocol, 0) == []
    assert protocol.failed(0, EngineFailure("x"), 0.0) == []
    (begin,) = say(protocol)
    assert isinstance(begin, Begin)
    assert begin.index == 1
    assert chunk(protocol, 0) == []
    assert kinds(chunk(protocol, 1)) == ["audio.start", "SendAudio"]


def test_an_utterance_that_ends_before_its_text_takes_the_rest_of_it_along() -> None:
    for end in ("finished", "failed"):
        protocol = new()
        send(protocol, "input.text", text="too much ")
        if end == "finished":
            finish(protocol, 0)
        else:
            protocol.failed(0, EngineFailure("x"), 0.0)
        assert send(protocol, "input.text", text="of it.") == []
        assert send(protocol, "input.done") == []
        assert send(protocol, "input.text", text="next")[1] == Push(1, "next")


def test_cancel_of_open_text_lets_the_next_begin() -> None:
    protocol = new()
    send(protocol, "input.text", text="interrupted ")
    assert kinds(send(protocol, "input.cancel")) == ["Drop", "audio.cancelled"]
    assert send(protocol, "input.text", text="next")[1] == Push(1, "next")


def test_draining_lets_the_open_utterance_end_and_nothing_begin() -> None:
    protocol = new()
    send(protocol, "input.text", text="one ")
    assert protocol.leave() == []
    assert send(protocol, "input.text", text="two.") == [Push(0, "two.")]
    assert send(protocol, "input.done") == [End(0)]
    error = only_error(send(protocol, "input.text", text="next"))
    assert error["code"] == "shutting_down"
    done = finish(protocol, 0)
    assert done[-1] == Close(1012, "the server is shutting down")
    assert kinds(new().leave()) == ["session.done", "Close"]


def test_a_key_comes_first_where_one_is_needed() -> None:
    def locked() -> SpeechProtocol:
        return new(authorized=False, accepts=lambda key: key == "k")

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
    assert kinds(say(protocol)) == ["Begin"]
    assert kinds(send(new(), "session.auth", key="any")) == ["session.authorized"]


def test_without_a_key_the_wait_is_not_an_idle_session() -> None:
    protocol = new(authorized=False)
    assert protocol.tick(KEY_TIMEOUT_S - 1) == []
    actions = protocol.tick(KEY_TIMEOUT_S)
    assert messages(actions)[0]["code"] == "invalid_api_key"
    assert actions[-1] == Close(1008, "an API key is required: no session.auth came")


def test_a_connection_that_brought_a_wrong_key_is_told_so() -> None:
    def locked() -> SpeechProtocol:
        return new(authorized=False, key_given=True)

    assert messages(send(locked(), "ping"))[0]["message"] == NOT_ACCEPTED
    assert messages(locked().tick(KEY_TIMEOUT_S))[0]["message"] == NOT_ACCEPTED


def test_flushes_of_nothing_take_no_room() -> None:
    protocol = new()
    assert send(protocol, "input.flush") == []
    send(protocol, "input.text", text="a")
    assert send(protocol, "input.flush") == [Flush(0)]
    assert send(protocol, "input.flush") == []


def test_fields_of_other_servers_are_understood() -> None:
    tasks = []
    protocol = new(check=lambda config, _: tasks.append(config.task_type))
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
    (begin,) = say(protocol)
    assert isinstance(begin, Begin)
    request = begin.request
    assert (request.split, request.instruct, request.max_frames) == ("sentence", "softly", 77)
    assert (request.text_mode, request.chunk, tasks) == ("whole", 3, ["CustomVoice"])
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
    (start,) = messages(chunk(protocol, 0))
    assert (start["format"], start["encoding"], start["sample_rate"]) == ("mp3", None, 16_000)
    assert start["content_type"] == "audio/mpeg"


def test_cancel_covers_what_waits_and_what_was_typed() -> None:
    protocol = new()
    say(protocol, "one")
    say(protocol, "two")
    send(protocol, "input.text", text="three")
    actions = send(protocol, "input.cancel")
    assert kinds(actions) == [*["Drop"] * 3, *["audio.cancelled"] * 3]
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
    done = finish(protocol, 0)
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
    assert kinds(actions) == ["Drop", "audio.cancelled", "session.done", "Close"]


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
    error = only_error(protocol.receive_text(data, 0.0))
    with pytest.raises(AssertionError, match=expected):
        raise AssertionError(error["message"])
    json.dumps(error, allow_nan=False).encode()
    assert kinds(say(protocol)) == ["Begin"]


def test_a_fault_of_the_server_does_not_cost_the_session() -> None:
    def check(config: SessionConfig, request: SynthesisRequest) -> None:
        raise TypeError("a bug")

    protocol = new(check=check)
    error = only_error(send(protocol, "session.config", voice="anna"))
    assert error["code"] == "internal_error"
    assert "a bug" not in error["message"]
    assert kinds(say(protocol)) == ["Begin"]


def test_binary_and_oversized_frames() -> None:
    protocol = new(max_message_bytes=1024)
    assert "got a binary frame of 7 bytes" in only_error(protocol.receive_bytes(7, 0.0))["message"]
    error = only_error(send(protocol, "input.text", text="é" * 500))
    assert error["code"] == "payload_too_large"
    assert "1024 bytes" in error["message"]
    assert kinds(say(protocol)) == ["Begin"]


def test_too_much_text_is_said_once_and_its_rest_not_spoken() -> None:
    protocol = new(max_text_chars=10)
    assert kinds(send(protocol, "input.text", text="123456")) == ["Begin", "Push"]
    stop, *told = send(protocol, "input.text", text="789012")
    assert stop == Drop(0)
    error = only_error(told)
    assert (error["code"], error["utterance_index"]) == ("text_too_long", 0)
    assert send(protocol, "input.text", text="end.") == []
    assert send(protocol, "input.done") == []
    assert send(protocol, "input.text", text="next")[1] == Push(1, "next")


def test_every_done_takes_an_index() -> None:
    protocol = new()
    assert only_error(send(protocol, "input.done"))["utterance_index"] == 0
    (begin,) = say(protocol)
    assert isinstance(begin, Begin)
    assert begin.index == 1


def test_a_flood_of_utterances_is_bounded() -> None:
    protocol = new()
    say(protocol)
    answers = [say(protocol, str(n)) for n in range(100)]
    refused = [messages(answer)[0] for answer in answers if messages(answer)]
    assert len(refused) == 84
    assert {message["code"] for message in refused} == {"busy"}


def test_errors_of_synthesis_keep_the_session() -> None:
    protocol = new()
    say(protocol)
    error = only_error(protocol.failed(0, Busy("later", retry_after_s=3), 0.0))
    assert (error["code"], error["retry_after_s"], error["utterance_index"]) == ("busy", 3, 0)
    assert kinds(say(protocol)) == ["Begin"]


def test_a_refused_configuration_changes_nothing() -> None:
    def check(config: SessionConfig, request: SynthesisRequest) -> None:
        if config.voice == "nobody":
            raise UnknownVoice("unknown voice", param="voice")

    protocol = new(check=check)
    send(protocol, "session.config", voice="anna", instructions="softly")
    assert only_error(send(protocol, "session.config", voice="nobody"))["param"] == "voice"
    (begin,) = say(protocol)
    assert isinstance(begin, Begin)
    assert (begin.request.voice, begin.request.instruct) == ("anna", "softly")


def test_idle() -> None:
    protocol = new()
    say(protocol)
    assert protocol.tick(1000.0) == []
    protocol.ended(0, STATS, 1000.0)
    assert protocol.tick(1059.0) == []
    protocol.receive_bytes(1, 1050.0)
    assert protocol.tick(1109.0) == []
    actions = protocol.tick(1110.0)
    assert kinds(actions) == ["error", "Close"]
    assert messages(actions)[0]["code"] == "idle_timeout"
    assert protocol.tick(9999.0) == []


def test_too_many_sessions() -> None:
    told, close = new().refuse(Busy("later"))
    assert (messages([told])[0]["code"], close) == ("busy", Close(1013, "too many connections"))


INPUTS = st.sampled_from(
    ["session.config", "input.text", "input.flush", "input.done", "input.cancel", "session.close"]
)
EVENTS = st.sampled_from(["chunk", "finished", "failed"])


@given(st.lists(st.one_of(INPUTS, EVENTS), max_size=60))
def test_whatever_comes_every_utterance_ends_exactly_once(steps: list[str]) -> None:
    protocol = new()
    line: list[int] = []  # begun, and neither over nor dropped
    asked = 0
    ended: list[int] = []
    started: list[int] = []
    closed = False
    for step in steps:
        first = line[0] if line else 0
        if step == "chunk":
            actions = chunk(protocol, first)
        elif step == "finished":
            actions = finish(protocol, first)
        elif step == "failed":
            actions = protocol.failed(first, EngineFailure("x"), 0.0)
        else:
            fields = {"text": "a"} if step == "input.text" else {}
            actions = send(protocol, step, **fields)
        if step in ("finished", "failed"):
            line = line[1:]
        assert not (closed and actions)
        for action in actions:
            if isinstance(action, Begin):
                assert action.after == (line[-1] if line else None)
                line.append(action.index)
                asked += 1
            elif isinstance(action, Push | Flush | End):
                assert action.index in line
            elif isinstance(action, Drop):
                line.remove(action.index)
            elif isinstance(action, SendAudio):
                assert first in started
                assert first not in ended
            elif isinstance(action, Close):
                closed = True
            else:
                index = action.message.get("utterance_index")
                kind = action.message["type"]
                if kind == "audio.start":
                    assert index not in started
                    started.append(index)
                if index is not None and kind in ("session.done", "audio.cancelled", "error"):
                    assert index not in ended
                    ended.append(index)
    assert not closed or len(ended) >= asked
