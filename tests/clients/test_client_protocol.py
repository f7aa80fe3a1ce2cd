"""The client's side of the speech protocol against the server's, message by message, no I/O."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from fake_voice import FakeVoice
from hypothesis import given, settings
from hypothesis import strategies as st

from kazeia_client import (
    ApiError,
    Audio,
    Cancelled,
    ConnectionLost,
    Finished,
    KazeiaError,
    Started,
    UnexpectedAnswer,
    UsageError,
)
from kazeia_client.protocol import SessionProtocol, Work
from kazeia_server.doors.actions import Action, Begin, Drop, Push, SendAudio, SendMessage
from kazeia_server.doors.speech.protocol import SpeechProtocol
from kazeia_server.errors import EngineFailure
from kazeia_server.settings import Settings
from kazeia_server.voices.backend import SynthesisStats

INFO = FakeVoice().info
STATS = SynthesisStats(
    ended="eos", audio_s=0.08, frames=1, n_chunks=1, ttfb_s=0.1, rtf=1.0, stages={}
)
BEGINNINGS = ("word", "é", " ", "...", "\u3164", "😀", "\u200b", "12", "你好", "«")


@dataclass
class Spoken:
    """An utterance as the test knows it."""

    work: Work
    tag: str
    audio: bytes = b""
    ends: list[Any] = field(default_factory=list)
    silenced: bool = False


class Line:
    """Both sides, and the messages on their way between them."""

    def __init__(self) -> None:
        self.client = SessionProtocol()
        self.server = SpeechProtocol(Settings(max_text_chars=60), now=0.0)
        self.up: deque[str] = deque()
        self.down: deque[str | bytes] = deque()
        self.texts: dict[int, str] = {}  # of utterances begun, and neither over nor dropped
        self.utterances: list[Spoken] = []

    def carry_up(self) -> None:
        if self.up:
            self._act(self.server.receive_text(self.up.popleft(), 0.0))

    def carry_down(self) -> None:
        if self.down:
            self.client.receive(self.down.popleft())

    def voice(self, what: str) -> None:
        """The voice makes a chunk, comes to its end, or fails."""
        index = next(iter(self.texts), None)
        if index is None:
            return
        self._act(self.server.begun(index, INFO, "anna"))
        if what == "chunk":
            self._act(self.server.audio(index, self.texts[index].encode()[:32].ljust(32)))
        elif what == "end":
            self._act(self.server.ended(index, STATS, 0.0))
        else:
            self._act(self.server.failed(index, EngineFailure("broke"), 0.0))

    def settle(self) -> None:
        """Everything arrives, and the voice speaks what there is."""
        for _ in range(30):
            while self.up:
                self.carry_up()
            self.voice("chunk")
            self.voice("end")
            while self.down:
                self.carry_down()
        self.take()

    def take(self) -> None:
        """Take what has come of every utterance."""
        for spoken in self.utterances:
            self._take(spoken)

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SendMessage):
                message = action.message
                self.down.append(json.dumps(message))
                if message["type"] in ("session.done", "error"):
                    self.texts.pop(message["utterance_index"], None)
            elif isinstance(action, SendAudio):
                self.down.append(action.data)
            elif isinstance(action, Begin):
                self.texts[action.index] = ""
            elif isinstance(action, Push):
                self.texts[action.index] += action.text
            elif isinstance(action, Drop):
                self.texts.pop(action.index, None)

    def _take(self, spoken: Spoken) -> None:
        if any(isinstance(end, Exception) for end in spoken.ends):
            return
        try:
            while (event := spoken.work.take()) is not None:
                if isinstance(event, Audio):
                    assert not spoken.silenced
                    assert not spoken.ends
                    spoken.audio += event.data
                    tags = re.findall("<.*?>", event.data.decode("utf-8", "ignore"))
                    assert set(tags) <= {spoken.tag}
                elif not isinstance(event, Started):
                    assert spoken.silenced == isinstance(event, Cancelled)
                    spoken.ends.append(event)
        except KazeiaError as error:
            spoken.ends.append(error)


PLAIN_STEPS = ("flush", "finish", "cancel", "up", "down", "take")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from(BEGINNINGS)),
        st.tuples(st.just("write"), st.sampled_from(BEGINNINGS)),
        st.tuples(st.sampled_from(PLAIN_STEPS), st.just("")),
        st.tuples(st.just("voice"), st.sampled_from(("chunk", "end", "fail"))),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_both_sides_always_mean_the_same_utterance(steps: list[tuple[str, str]]) -> None:
    """Whatever is written, cancelled or fails in whatever order messages arrive."""
    line = Line()
    current: Spoken | None = None
    for what, detail in steps:
        if what == "begin":
            if current is not None and not current.work.text_done and not current.work.over:
                continue
            work, messages = line.client.begin()
            current = Spoken(work, f"<{len(line.utterances)}>")
            line.utterances.append(current)
            line.up.extend(messages)
            line.up.extend(line.client.write(work, detail))
        elif what == "write" and current is not None and not current.work.text_done:
            line.up.extend(line.client.write(current.work, current.tag + detail))
        elif what == "flush" and current is not None:
            line.up.extend(line.client.flush(current.work))
        elif what == "finish" and current is not None:
            line.up.extend(line.client.finish(current.work))
        elif what == "cancel":
            for spoken in line.utterances:
                spoken.silenced = spoken.silenced or not spoken.work.heard
            line.up.extend(line.client.cancel())
        elif what == "up":
            line.carry_up()
        elif what == "down":
            line.carry_down()
        elif what == "voice":
            line.voice(detail)
        elif what == "take":
            line.take()
    if current is not None:
        line.up.extend(line.client.finish(current.work))
    line.settle()
    for spoken in line.utterances:
        assert len(spoken.ends) == 1, spoken
        if isinstance(spoken.ends[0], Cancelled):
            assert spoken.silenced
        elif not isinstance(spoken.ends[0], Finished):
            assert isinstance(spoken.ends[0], ApiError)
            expected = ("engine_error", "text_too_long", "busy", "invalid_request")
            assert spoken.ends[0].code in expected
    # And what comes after it all is heard.
    work, messages = line.client.begin()
    after = Spoken(work, "<after>")
    line.utterances.append(after)
    line.up.extend(messages + line.client.write(work, after.tag) + line.client.finish(work))
    line.settle()
    assert isinstance(after.ends[0], Finished)
    assert after.audio


def test_the_check_notices_a_number_too_many() -> None:
    """Negative control: a client that counts one utterance too many hears nothing of the next."""
    line = Line()
    line.client._next_index += 1
    work, messages = line.client.begin()
    line.utterances.append(Spoken(work, "<0>"))
    line.up.extend(messages + line.client.write(work, "<0>") + line.client.finish(work))
    line.settle()
    assert line.utterances[0].ends == []


@pytest.mark.parametrize(
    "frame",
    ["no JSON", "[]", '"text"', '{"no": "type"}', '{"type": "audio.start", "utterance_index": 0}'],
)
def test_what_is_no_message_ends_the_session(frame: str) -> None:
    client = SessionProtocol()
    work, _ = client.begin()
    client.write(work, "Hello.")
    client.receive(frame)
    with pytest.raises(UnexpectedAnswer):
        work.take()
    with pytest.raises(UnexpectedAnswer):
        client.begin()


def test_messages_of_a_later_protocol_are_passed_over() -> None:
    client = SessionProtocol()
    client.receive('{"type": "something.new", "utterance_index": 3}')
    client.receive(b"audio of nothing")
    client.begin()


def test_a_done_without_figures_is_no_end() -> None:
    client = SessionProtocol()
    work, _ = client.begin()
    client.write(work, "Hello.")
    client.receive('{"type": "session.done", "utterance_index": 0}')
    with pytest.raises(UnexpectedAnswer, match=r"audio\.done"):
        work.take()


def test_long_text_leaves_in_messages_that_the_server_reads() -> None:
    client = SessionProtocol()
    work, _ = client.begin()
    messages = client.write(work, "\0" * 20_000 + "a")
    assert all(len(message.encode()) < 128 << 10 for message in messages)
    assert "".join(json.loads(message)["text"] for message in messages) == "\0" * 20_000 + "a"


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (1012, "", "shutting down"),
        (1013, "too many connections", "too many connections"),
        (1008, "", "the key is not accepted"),
        (1011, "keepalive ping timeout", "keepalive ping timeout"),
        (None, "", "no close frame"),
        (4000, "", "close code 4000"),
    ],
)
def test_how_a_connection_ends(code: int | None, reason: str, expected: str) -> None:
    client = SessionProtocol()
    work, _ = client.begin()
    client.closed(code, reason)
    with pytest.raises(KazeiaError, match=expected):
        work.take()
    client.closed(None, "")  # what came first counts
    with pytest.raises(KazeiaError, match=expected):
        client.begin()
    assert client.cancel() == []


def test_what_comes_in_before_an_end_is_heard() -> None:
    client = SessionProtocol()
    work, _ = client.begin()
    client.write(work, "Hello.")
    start = {"type": "audio.start", "utterance_index": 0, "format": "pcm"}
    client.receive(json.dumps({**start, "sample_rate": 24_000, "channels": 1}))
    client.receive(b"\0\0")
    assert client.buffered == 2
    client.closed(None, "")
    assert isinstance(work.take(), Started)
    assert work.take() == Audio(b"\0\0")
    assert client.buffered == 0
    with pytest.raises(ConnectionLost):
        work.take()


def test_text_is_checked_before_it_is_sent() -> None:
    client = SessionProtocol()
    work, _ = client.begin()
    with pytest.raises(UsageError, match="surrogate"):
        client.write(work, "\udc00")
    with pytest.raises(UsageError, match="expected text"):
        client.write(work, b"bytes")  # type: ignore[arg-type]
