"""The ElevenLabs WebSocket protocols without sockets."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from kazeia_server.doors.actions import (
    Action,
    Begin,
    Close,
    Drop,
    End,
    Flush,
    Push,
    SendMessage,
)
from kazeia_server.doors.elevenlabs.protocol import (
    MAX_CONTEXTS,
    Limits,
    MultiContext,
    Protocol,
    SingleContext,
)
from kazeia_server.errors import (
    Busy,
    EngineFailure,
    InvalidRequest,
    ShuttingDown,
    TextTimeout,
    UnknownVoice,
)
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.voices.backend import SynthesisStats

PCM = b"\1\0" * 6
STATS = SynthesisStats(ended="eos", audio_s=0.1, frames=1, n_chunks=1, ttfb_s=0.1, rtf=0.4)
LIMITS = Limits(max_message_bytes=2000, max_text_chars=100, inactivity_s=20.0, patience_s=50.0)


def refuse_nul(text: str) -> None:
    if "\0" in text:
        raise InvalidRequest("text holds a NUL character", param="text")


def order() -> SynthesisRequest:
    return SynthesisRequest(text="", voice="anna")


OPTIONS: dict[str, Any] = {"now": 0.0, "order": order, "check_text": refuse_nul}


def multi(**options: Any) -> MultiContext:
    return MultiContext(LIMITS, **{**OPTIONS, **options})


def single(**options: Any) -> SingleContext:
    return SingleContext(LIMITS, **{**OPTIONS, **options})


def begin(index: int, speed: float, after: int | None) -> Begin:
    """The beginning of an utterance in the voice of the connection."""
    return Begin(index, SynthesisRequest(text="", voice="anna", speed=speed), after)


def send(protocol: Protocol, now: float = 0.0, **fields: Any) -> list[Action]:
    return protocol.receive_text(json.dumps(fields), now)


def say(protocol: Protocol, context: str, text: str = "Hello. ", **fields: Any) -> int:
    """Write the first text of a context; the index of its utterance."""
    first, push = send(protocol, text=text, context_id=context, **fields)[:2]
    assert isinstance(first, Begin)
    assert push == Push(first.index, text)
    return first.index


def messages(actions: list[Action]) -> list[dict[str, Any]]:
    return [action.message for action in actions if isinstance(action, SendMessage)]


def final(context: str) -> SendMessage:
    return SendMessage({"audio": None, "isFinal": True, "contextId": context})


def closes(actions: list[Action]) -> list[int]:
    return [action.code for action in actions if isinstance(action, Close)]


def test_a_turn_as_livekit_speaks_it() -> None:
    protocol = multi()
    assert send(protocol, text=" ", voice_settings={}, context_id="a") == []
    assert send(protocol, text="One sentence. ", context_id="a", flush=True) == [
        begin(0, 1.0, None),
        Push(0, "One sentence. "),
        Flush(0),
    ]
    assert send(protocol, text="Another. ", context_id="a", flush=True) == [
        Push(0, "Another. "),
        Flush(0),
    ]
    assert send(protocol, text="", context_id="a", flush=True) == []
    (message,) = messages(protocol.audio(0, PCM))
    assert base64.b64decode(message["audio"]) == PCM
    assert message["contextId"] == "a"
    assert message["alignment"] is None
    assert message["normalizedAlignment"] is None
    assert send(protocol, context_id="a", close_context=True) == [End(0)]
    assert messages(protocol.audio(0, PCM))
    assert protocol.ended(0, STATS, 3.0) == [final("a")]
    assert protocol.ended(0, STATS, 3.0) == []


def test_a_turn_as_pipecat_speaks_it() -> None:
    protocol = multi()
    assert send(protocol, text="") == []  # keep-alive before anything else
    assert send(protocol, text=" ", context_id="a", voice_settings={"speed": 1.1}) == []
    assert send(protocol, text="Hello.", context_id="a") == [begin(0, 1.1, None), Push(0, "Hello.")]
    assert send(protocol, text="", context_id="a") == []
    assert send(protocol, text="More.", context_id="a") == [Push(0, "More.")]
    assert send(protocol, context_id="a", flush=True) == [Flush(0)]
    assert send(protocol, context_id="a", close_context=True) == [End(0)]
    assert protocol.ended(0, STATS, 1.0) == [final("a")]
    assert send(protocol, close_socket=True) == [Close(1000, "close_socket")]


def test_closing_before_a_flush_is_an_interruption() -> None:
    protocol = multi()
    say(protocol, "a")
    assert messages(protocol.audio(0, PCM))
    assert send(protocol, context_id="a", close_context=True) == [Drop(0), final("a")]
    assert protocol.audio(0, PCM) == []
    assert protocol.ended(0, STATS, 1.0) == []
    assert protocol.failed(0, EngineFailure("late"), 1.0) == []
    assert send(protocol, context_id="a", close_context=True) == []


def test_closing_again_is_an_interruption() -> None:
    protocol = multi()
    say(protocol, "a", flush=True)
    assert send(protocol, context_id="a", close_context=True) == [End(0)]
    assert messages(protocol.audio(0, PCM))
    assert send(protocol, context_id="a", close_context=True) == [Drop(0), final("a")]
    assert protocol.audio(0, PCM) == []
    assert protocol.ended(0, STATS, 1.0) == []


def test_text_written_after_the_flush_makes_closing_an_interruption() -> None:
    protocol = multi()
    say(protocol, "a", flush=True)
    assert send(protocol, text="And then", context_id="a") == [Push(0, "And then")]
    assert send(protocol, context_id="a", close_context=True) == [Drop(0), final("a")]


def test_white_space_after_the_flush_does_not() -> None:
    protocol = multi()
    say(protocol, "a", flush=True)
    assert send(protocol, text=" ", context_id="a") == []
    assert send(protocol, context_id="a", close_context=True) == [End(0)]


def test_white_space_between_words_is_text() -> None:
    protocol = multi()
    say(protocol, "a", "Hello")
    assert send(protocol, text=" ", context_id="a") == [Push(0, " ")]
    assert send(protocol, text="world", context_id="a") == [Push(0, "world")]


def test_sentences_without_a_space_between_them() -> None:
    protocol = multi(sentences=True)
    assert send(protocol, text="Hello.", context_id="a")[1] == Push(0, "Hello. ")
    assert send(protocol, text='"Why?"', context_id="a") == [Push(0, '"Why?" ')]
    assert send(protocol, text="Why? ", context_id="a") == [Push(0, "Why? ")]
    assert send(protocol, text="你好。", context_id="a") == [Push(0, "你好。")]
    assert send(protocol, text="wor", context_id="a") == [Push(0, "wor")]
    assert say(multi(), "a", "Hello.") == 0


def test_a_context_without_text_is_final_at_once() -> None:
    protocol = multi()
    assert send(protocol, text=" ", context_id="a") == []
    assert send(protocol, context_id="a", close_context=True) == [final("a")]


@pytest.mark.parametrize(
    "message", [{"flush": True}, {"text": ""}, {"close_context": True}, {"text": "", "flush": True}]
)
def test_nothing_opens_a_context_but_text(message: dict[str, Any]) -> None:
    protocol = multi()
    for n in range(50):
        assert send(protocol, context_id=f"c{n}", **message) == []
    say(protocol, "real")


def test_a_sixth_context_costs_the_connection() -> None:
    protocol = multi()
    for n in range(MAX_CONTEXTS):
        say(protocol, f"c{n}")
    actions = send(protocol, text="One too many.", context_id="c5")
    (message,) = messages(actions)
    assert message["error"] == "max_active_conversations"
    assert (message["code"], message["contextId"]) == (1008, "c5")
    assert closes(actions) == [1008]
    assert protocol.audio(0, PCM) == []
    assert send(protocol, text="x", context_id="c0") == []


def test_contexts_that_are_closed_do_not_count() -> None:
    protocol = multi()
    for n in range(50):
        say(protocol, f"c{n}", flush=True)
        assert send(protocol, context_id=f"c{n}", close_context=True) == [End(n)]
    for n in range(50):
        assert protocol.ended(n, STATS, 1.0) == [final(f"c{n}")]


def test_contexts_are_spoken_side_by_side() -> None:
    protocol = multi()
    first, second = say(protocol, "a"), say(protocol, "b")
    for index, context in ((first, "a"), (second, "b"), (first, "a")):
        (message,) = messages(protocol.audio(index, PCM))
        assert message["contextId"] == context


def test_an_id_can_be_used_again() -> None:
    protocol = multi()
    say(protocol, "a", flush=True)
    assert send(protocol, context_id="a", close_context=True) == [End(0)]
    # The new context waits for the old one of its name: their audio must not mix.
    assert send(protocol, text="Again. ", context_id="a") == [begin(1, 1.0, 0), Push(1, "Again. ")]
    assert protocol.ended(0, STATS, 1.0) == [final("a")]
    assert messages(protocol.audio(1, PCM))
    assert send(protocol, context_id="a", close_context=True) == [Drop(1), final("a")]


def test_messages_without_an_id_share_a_context() -> None:
    protocol = multi()
    assert send(protocol, text="Hello. ", flush=True)[0] == begin(0, 1.0, None)
    (message,) = messages(protocol.audio(0, PCM))
    assert message["contextId"] == "default"
    assert send(protocol, close_context=True) == [End(0)]


def test_voice_settings_may_not_change() -> None:
    protocol = multi()
    say(protocol, "a", voice_settings={"speed": 0.9, "stability": 0.5})
    assert send(
        protocol, text="More.", context_id="a", voice_settings={"speed": 0.9, "stability": 0.5}
    ) == [Push(0, "More.")]
    assert send(protocol, text=" ", context_id="a", voice_settings=None) == [Push(0, " ")]
    assert send(protocol, text=" ", context_id="a", voice_settings={}) == [Push(0, " ")]
    actions = send(protocol, text="More.", context_id="a", voice_settings={"speed": 1.2})
    assert "voice_settings" in messages(actions)[0]["message"]
    assert closes(actions) == [1008]


def test_voice_settings_may_come_before_the_text() -> None:
    protocol = multi()
    assert send(protocol, text=" ", context_id="a") == []
    assert send(protocol, text=" ", context_id="a", voice_settings={"speed": 2}) == []
    assert send(protocol, text="Hello.", context_id="a")[0] == begin(0, 2.0, None)


@pytest.mark.parametrize("speed", [0.1, 5, "fast", True, [1]])
def test_a_wrong_speed_spoils_only_its_message(speed: Any) -> None:
    protocol = multi()
    actions = send(protocol, text="Hello.", context_id="a", voice_settings={"speed": speed})
    (message,) = messages(actions)
    assert "speed" in message["message"]
    assert (message["error"], message["contextId"]) == ("invalid_request", "a")
    assert closes(actions) == []
    say(protocol, "b")


def test_close_socket_waits_for_what_was_flushed() -> None:
    protocol = multi()
    say(protocol, "a", flush=True)
    say(protocol, "b")
    assert send(protocol, close_socket=True) == [End(0), Drop(1), final("b")]
    assert send(protocol, text="Too late.", context_id="c") == []
    assert messages(protocol.audio(0, PCM))
    assert protocol.ended(0, STATS, 1.0) == [final("a"), Close(1000, "close_socket")]
    assert protocol.tick(100.0) == []


def test_what_is_still_spoken_can_be_silenced_after_close_socket() -> None:
    protocol = multi()
    say(protocol, "a", flush=True)
    assert send(protocol, close_socket=True) == [End(0)]
    actions = send(protocol, context_id="a", close_context=True)
    assert actions == [Drop(0), final("a"), Close(1000, "close_socket")]


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (EngineFailure("a tensor is NaN"), "engine_error"),
        (Busy("full"), "busy"),
        (ShuttingDown("bye"), "shutting_down"),
        (RuntimeError("secret"), "internal_error"),
    ],
)
def test_a_failure_ends_one_context(error: Exception, name: str) -> None:
    protocol = multi()
    say(protocol, "a")
    say(protocol, "b")
    failed = protocol.failed(0, error, 1.0)
    message, last = messages(failed)
    assert (message["error"], message["contextId"]) == (name, "a")
    assert "code" not in message  # of a close frame: the connection stays
    assert "secret" not in message["message"]
    assert SendMessage(last) == final("a")
    assert closes(failed) == []
    assert messages(protocol.audio(1, PCM))
    assert send(protocol, context_id="a", close_context=True) == []
    assert say(protocol, "a") == 2


def test_an_utterance_that_ended_by_itself_leaves_its_context_open() -> None:
    protocol = multi()
    say(protocol, "a")
    assert protocol.ended(0, STATS, 1.0) == []
    assert send(protocol, text="More.", context_id="a") == [begin(1, 1.0, None), Push(1, "More.")]
    assert protocol.failed(1, TextTimeout("no text came"), 2.0) == []
    assert send(protocol, text="More.", context_id="a") == [begin(2, 1.0, None), Push(2, "More.")]


def test_a_context_gives_its_slot_back_after_a_flush() -> None:
    protocol = multi()
    say(protocol, "a", flush=True)
    assert protocol.tick(1.0) == []
    assert protocol.tick(2.0) == [End(0)]
    assert protocol.tick(3.0) == []
    # Its next text is spoken after what is still being spoken.
    assert send(protocol, 3.0, text="More. ", context_id="a") == [
        begin(1, 1.0, 0),
        Push(1, "More. "),
    ]
    assert protocol.ended(0, STATS, 4.0) == []
    assert send(protocol, 4.0, context_id="a", flush=True) == [Flush(1)]
    assert send(protocol, 4.0, context_id="a", close_context=True) == [End(1)]
    assert protocol.ended(1, STATS, 5.0) == [final("a")]


def test_text_that_stops_coming_is_spoken_and_can_still_be_interrupted() -> None:
    protocol = multi()
    say(protocol, "a", "Half a sen")
    assert protocol.tick(19.0) == []
    assert protocol.tick(20.0) == [End(0)]
    assert send(protocol, 21.0, context_id="a", close_context=True) == [Drop(0), final("a")]


def test_a_silent_client_is_told_why_it_is_left() -> None:
    protocol = multi()
    send(protocol, 0.0, text=" ", context_id="a")
    assert protocol.tick(19.0) == []
    actions = protocol.tick(20.0)
    (message,) = messages(actions)
    assert (message["error"], message["code"]) == ("input_timeout_exceeded", 1008)
    assert closes(actions) == [1008]


def test_a_client_without_contexts_is_left_without_a_word() -> None:
    assert multi().tick(20.0) == [Close(1000, "idle")]


def test_speech_is_no_silence() -> None:
    protocol = multi()
    say(protocol, "a", flush=True)
    assert protocol.tick(100.0) == [End(0)]
    assert protocol.tick(200.0) == []
    assert protocol.ended(0, STATS, 200.0) == []
    assert protocol.tick(219.0) == []
    assert closes(protocol.tick(220.0)) == [1008]


def test_a_keep_alive_keeps_the_connection_and_one_context() -> None:
    protocol = multi()
    send(protocol, 0.0, text=" ", context_id="a")
    send(protocol, 0.0, text=" ", context_id="b")
    send(protocol, 15.0, text="", context_id="a")
    assert protocol.tick(21.0) == [final("b")]
    assert protocol.tick(34.0) == []
    send(protocol, 34.0, text="")  # of no context
    assert protocol.tick(36.0) == [final("a")]
    assert protocol.tick(54.0) == [Close(1000, "idle")]


def test_the_server_leaves_after_what_was_written() -> None:
    protocol = multi()
    say(protocol, "a")
    assert protocol.leave() == [End(0)]
    assert protocol.leave() == []
    assert send(protocol, text="More.", context_id="b") == []
    actions = protocol.ended(0, STATS, 1.0)
    assert actions[0] == final("a")
    assert closes(actions) == [1012]
    assert closes(multi().leave()) == [1012]


def test_single_from_beginning_to_end() -> None:
    protocol = single()
    assert send(protocol, text=" ", voice_settings=None, generation_config={"x": [50]}) == []
    assert send(protocol, text="Hello ", try_trigger_generation=True) == [
        begin(0, 1.0, None),
        Push(0, "Hello "),
    ]
    assert send(protocol, text=" ") == [Push(0, " ")]
    assert send(protocol, text="world. ", flush=True) == [Push(0, "world. "), Flush(0)]
    (message,) = messages(protocol.audio(0, PCM))
    assert "contextId" not in message
    assert send(protocol, text="") == [End(0)]
    assert send(protocol, text="Too late.") == []
    assert protocol.ended(0, STATS, 1.0) == [
        SendMessage({"audio": None, "isFinal": True}),
        Close(1000, ""),
    ]


def test_single_without_text() -> None:
    actions = send(single(), text="")
    assert messages(actions) == [{"audio": None, "isFinal": True}]
    assert closes(actions) == [1000]


def test_single_speaks_what_was_not_flushed() -> None:
    protocol = single()
    send(protocol, text="Hello. ")
    assert send(protocol, text="") == [End(0)]
    assert messages(protocol.audio(0, PCM))


def test_single_ends_with_its_failure() -> None:
    protocol = single()
    send(protocol, text="Hello. ")
    actions = protocol.failed(0, Busy("full"), 1.0)
    assert messages(actions) == [{"message": "full", "error": "busy", "code": 1013}]
    assert closes(actions) == [1013]


def test_single_that_is_silent() -> None:
    actions = single().tick(20.0)
    assert messages(actions)[0]["error"] == "input_timeout_exceeded"
    assert closes(actions) == [1008]


BAD_MESSAGES = [
    "",
    "hello",
    "[]",
    "null",
    "1",
    '"text"',
    "{}",
    '{"text": 1}',
    '{"text": null}',
    '{"txt": "Hello."}',
    '{"context_id": "a"}',
    '{"text": "a", "voice_settings": {"speed": 9}}',
    '{"text": ["a"]}',
    '{"text": "a", "context_id": 5}',
    '{"text": "a", "flush": "yes"}',
    '{"text": "a", "voice_settings": []}',
    '{"close_context": 1}',
    '{"text": "\\ud800"}',
    '{"text": "a\\u0000b", "context_id": "a"}',
    '{"text": NaN}',
    "[" * 1900,
    "{" * 1900,
    json.dumps({"text": "x" * 101, "context_id": "a"}),
    json.dumps({"text": "x" * 3000}),
    json.dumps({"text": "a", "context_id": "x" * 257}),
]


@pytest.mark.parametrize("make", [multi, single])
@pytest.mark.parametrize("data", BAD_MESSAGES)
def test_a_bad_message_costs_nothing_but_itself(make: Any, data: str) -> None:
    protocol: Protocol = make()
    actions = protocol.receive_text(data, 0.0)
    (message,) = messages(actions)
    assert len(actions) == 1
    assert message["message"]
    assert message["error"] in ("invalid_request", "text_too_long", "payload_too_large")
    assert "code" not in message  # of a close frame
    assert send(protocol, text="Still here. ")[0] == begin(0, 1.0, None)


@pytest.mark.parametrize(
    "message",
    [
        {"text": " "},
        {"text": ""},
        {"voice_settings": {"speed": 1.1}},
        {"text": " ", "voice_settings": {"stability": 0.5}, "generation_config": {"x": [1]}},
        {"flush": True},
        {"xi_api_key": "any"},
        {"context_id": "a", "close_context": True},
    ],
)
def test_messages_without_words_are_no_mistakes(message: dict[str, Any]) -> None:
    for protocol in (multi(), single()):
        assert not any("error" in told for told in messages(send(protocol, **message)))


def test_the_space_between_sentences_counts() -> None:
    """An utterance never gets more than it takes."""
    protocol = multi(sentences=True)
    actions = send(protocol, text="x" * 99 + ".", context_id="a")
    assert messages(actions)[0]["error"] == "text_too_long"
    assert send(protocol, text="x" * 98 + ".", context_id="a")[1] == Push(0, "x" * 98 + ". ")


@pytest.mark.parametrize("make", [multi, single])
def test_a_binary_frame_costs_nothing(make: Any) -> None:
    protocol: Protocol = make()
    (message,) = messages(protocol.receive_bytes(7, 0.0))
    assert "binary" in message["message"]
    assert send(protocol, text="Still here. ")[0] == begin(0, 1.0, None)


def test_unknown_fields_are_passed_over() -> None:
    assert send(multi(), text="Hi. ", context_id="a", voices=[1], generator_config=7) == [
        begin(0, 1.0, None),
        Push(0, "Hi. "),
    ]


def test_text_is_bounded_until_it_is_spoken() -> None:
    protocol = multi()
    say(protocol, "a", "x" * 60)
    actions = send(protocol, text="y" * 60, context_id="a")
    (message,) = messages(actions)
    assert (message["error"], message["contextId"]) == ("text_too_long", "a")
    assert send(protocol, text="z" * 40, context_id="a") == [Push(0, "z" * 40)]
    assert protocol.ended(0, STATS, 1.0) == []
    assert send(protocol, text="y" * 60, context_id="a")[0] == begin(1, 1.0, None)


@pytest.mark.parametrize("field", ["xi_api_key", "xi-api-key", "authorization"])
def test_a_key_in_the_first_message(field: str) -> None:
    protocol = multi(authorized=False, accepts=lambda key: key == "secret")
    key = "Bearer secret" if field == "authorization" else "secret"
    fields: dict[str, Any] = {"text": " ", "context_id": "a", field: key}
    assert send(protocol, **fields) == []
    say(protocol, "a")


@pytest.mark.parametrize(
    "data", ['{"text": "Hi."}', '{"text": "Hi.", "xi_api_key": "wrong"}', "nonsense", "[]"]
)
def test_no_key_no_connection(data: str) -> None:
    protocol = multi(authorized=False, accepts=lambda key: key == "secret")
    actions = protocol.receive_text(data, 0.0)
    assert closes(actions) == [1008]
    assert not any(isinstance(action, Begin) for action in actions)
    binary = multi(authorized=False).receive_bytes(3, 0.0)
    assert closes(binary) == [1008]


@pytest.mark.parametrize(
    ("fields", "key_given", "wrong"),
    [
        ({}, False, False),
        ({"xi_api_key": ""}, False, False),
        ({"authorization": "Bearer "}, False, False),
        ({"xi_api_key": "wrong"}, False, True),
        ({"xi-api-key": "wrong"}, False, True),
        ({"authorization": "Bearer wrong"}, False, True),
        ({}, True, True),
    ],
)
def test_a_wrong_key_is_not_a_missing_one(
    fields: dict[str, str], key_given: bool, wrong: bool
) -> None:
    protocol = multi(authorized=False, key_given=key_given)
    (message,) = messages(send(protocol, text="Hi.", **fields))
    assert (message["error"], message["code"]) == ("invalid_api_key", 1008)
    expected = "the API key that was sent is not accepted" if wrong else "an API key is required: "
    assert message["message"].startswith(expected)


@pytest.mark.parametrize(
    ("error", "code"), [(UnknownVoice("unknown voice 'x'"), 1008), (ShuttingDown("bye"), 1012)]
)
def test_a_connection_that_asks_for_too_much(error: Exception, code: int) -> None:
    def refuse() -> SynthesisRequest:
        raise error

    actions = send(multi(order=refuse), text=" ", context_id="a")
    assert messages(actions)[0]["message"] == str(error)
    assert closes(actions) == [code]


def test_close_reasons_fit_into_a_frame() -> None:
    def refuse() -> SynthesisRequest:
        raise UnknownVoice("ä" * 500)

    (_, close) = send(multi(order=refuse), text=" ")
    assert isinstance(close, Close)
    assert len(close.reason.encode()) <= 123


def test_a_connection_without_a_key_is_not_kept() -> None:
    protocol = multi(authorized=False)
    assert protocol.tick(9.0) == []
    (close,) = protocol.tick(11.0)
    assert isinstance(close, Close)
    assert close.code == 1008


def test_utterances_that_wait_are_bounded() -> None:
    protocol = multi()
    refused = 0
    for _ in range(100):
        actions = send(protocol, text="Hello. ", context_id="c", flush=True)
        actions += send(protocol, context_id="c", close_context=True)
        told = [a.message for a in actions if isinstance(a, SendMessage)]
        if told:
            refused += 1
            assert told[0]["error"] == "busy"
            assert told[-1] == {"audio": None, "isFinal": True, "contextId": "c"}
        else:
            assert any(isinstance(action, Begin) for action in actions)
    assert refused == 36
