"""The ElevenLabs WebSockets over real sockets."""

from __future__ import annotations

import base64
import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import av
import pytest
from fake_voice import FRAME, RATE, FakeVoice
from live import Live, serving, until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from kazeia_server.audio.pcm import pcm16
from kazeia_server.errors import EngineFailure


class Client:
    """A client that checks on the way what always holds."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.audio: dict[str, bytes] = {}
        self.finals: list[str] = []
        self.errors: list[dict[str, Any]] = []

    def send(self, **fields: Any) -> None:
        self.socket.send(json.dumps(fields))

    def say(self, context: str, text: str = "Hello. ") -> None:
        self.send(text=text, context_id=context)

    def speak(self, context: str, text: str = "Hello. ") -> None:
        """A whole turn."""
        self.say(context, text)
        self.send(context_id=context, flush=True)
        self.send(context_id=context, close_context=True)

    def receive(self, timeout: float = 10.0) -> dict[str, Any]:
        data = self.socket.recv(timeout=timeout)
        assert isinstance(data, str)
        message: dict[str, Any] = json.loads(data)
        context = message.get("contextId", "")
        if "error" in message:
            assert message["message"]
            self.errors.append(message)
        elif message.get("isFinal"):
            self.finals.append(context)
        else:
            audio = base64.b64decode(message["audio"], validate=True)
            assert audio
            assert message["alignment"] is None
            self.audio[context] = self.audio.get(context, b"") + audio
        return message

    def until_final(self, context: str = "") -> bytes:
        """Everything until that context is over; its audio."""
        before = self.finals.count(context)
        while self.finals.count(context) == before:
            self.receive()
        return self.audio.pop(context, b"")

    def until_closed(self) -> int:
        """Everything until the server closes; its code."""
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                self.receive()
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code


@contextmanager
def client(
    live: Live,
    kind: str = "multi-stream-input",
    voice: str = "anna",
    query: str = "output_format=pcm_24000",
    **options: Any,
) -> Iterator[Client]:
    url = f"ws://127.0.0.1:{live.port}/v1/text-to-speech/{voice}/{kind}?{query}"
    with connect(url, proxy=None, open_timeout=10, close_timeout=5, **options) as websocket:
        yield Client(websocket)


def said(n_chunks: int) -> bytes:
    return b"".join(pcm16(FakeVoice().open(None).samples(n)) for n in range(n_chunks))  # type: ignore[arg-type]


def quiet(live: Live, voice: FakeVoice) -> bool:
    return live.service.running == 0 and live.service.waiting == 0 and voice.open_now == 0


def test_a_turn() -> None:
    voice = FakeVoice(n_chunks=3)
    query = "output_format=pcm_24000&language_code=fr&seed=3&model_id=x&sync_alignment=true&foo=1"
    with serving(voice) as live, client(live, voice="bert", query=query) as user:
        user.send(text=" ", context_id="a", voice_settings={"speed": 1.0, "stability": 0.5})
        for piece in ("Hel", "lo ", "there. "):
            user.say("a", piece)
        user.send(context_id="a", flush=True)
        user.send(context_id="a", close_context=True)
        assert user.until_final("a") == said(3)
        user.send(close_socket=True)
        assert user.until_closed() == 1000
    assert user.errors == []
    request = voice.requests[0]
    assert (request.voice, request.language, request.seed) == ("Bert", "french", 3)


def test_audio_comes_while_text_is_still_written() -> None:
    voice = FakeVoice(n_chunks=3)
    with serving(voice) as live, client(live) as user:
        user.say("a", "The first sentence. ")
        user.send(context_id="a", flush=True)
        while len(user.audio.get("a", b"")) < 2 * 3 * FRAME:
            user.receive()
        assert user.finals == []
        user.say("a", "The second sentence. ")
        user.send(context_id="a", flush=True)
        user.send(context_id="a", close_context=True)
        assert len(user.until_final("a")) >= 2 * 6 * FRAME
    assert live.service.running == 0


def test_contexts_side_by_side() -> None:
    voice = FakeVoice(n_chunks=10, delay_s=0.01)
    with serving(voice, max_concurrent=2) as live, client(live) as user:
        user.speak("a")
        user.speak("b")
        order: list[str] = []
        while len(user.finals) < 2:
            order.append(user.receive()["contextId"])
        assert {"a", "b"} == set(order[:10])
        assert user.audio == {"a": said(10), "b": said(10)}
    assert voice.most_open == 2


def test_contexts_wait_for_a_slot_without_blocking_the_socket() -> None:
    gate = threading.Event()
    voice = FakeVoice(n_chunks=2, gate=gate)
    with serving(voice, max_concurrent=1) as live, client(live) as user:
        for name in ("a", "b", "c"):
            user.speak(name)
        until(lambda: live.service.running == 1 and live.service.waiting == 2)
        user.send(text=5)
        assert user.receive()["error"] == "invalid_request"
        gate.set()
        for name in ("a", "b", "c"):
            assert user.until_final(name) == said(2)
        assert user.finals == ["a", "b", "c"]


@pytest.mark.parametrize("after_chunks", [0, 1, 5])
def test_an_interruption(after_chunks: int) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.003)
    with serving(voice, max_concurrent=1, max_queue=0) as live, client(live) as user:
        for n in range(5):
            user.say(f"c{n}", "An endless text. And more of it. ")
            while len(user.audio.get(f"c{n}", b"")) < after_chunks * 2 * FRAME:
                user.receive()
            user.send(context_id=f"c{n}", close_context=True)
            user.until_final(f"c{n}")
        user.send(text=1)  # nothing but its answer follows
        assert user.receive()["error"] == "invalid_request"
        assert user.errors[1:] == []
        until(lambda: quiet(live, voice))
    assert len(voice.requests) <= 10


def test_an_interruption_after_the_turn_was_complete() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.003)
    with serving(voice, max_concurrent=1, max_queue=0) as live, client(live) as user:
        user.speak("a", "An endless text. ")
        while not user.audio:
            user.receive()
        user.send(context_id="a", close_context=True)
        user.until_final("a")
        until(lambda: quiet(live, voice))
        user.send(text=1)
        assert user.receive()["error"] == "invalid_request"


def test_a_storm_of_interruptions() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.001)
    with serving(voice, max_concurrent=1, max_queue=0) as live, client(live) as user:
        for n in range(200):
            user.say(f"c{n}", "An endless text. ")
            user.send(context_id=f"c{n}", close_context=True)
        for n in range(200):
            user.until_final(f"c{n}")
        assert user.errors == []
        voice.n_chunks = 2
        user.speak("last")
        assert user.until_final("last") == said(2)
        until(lambda: quiet(live, voice))


def test_fifty_rapid_contexts() -> None:
    voice = FakeVoice(n_chunks=2)
    with serving(voice, max_concurrent=2, max_queue=60) as live, client(live) as user:
        for n in range(50):
            user.speak(f"c{n}")
        while len(user.finals) < 50:
            user.receive()
        assert user.errors == []
        assert sorted(user.audio) == sorted(f"c{n}" for n in range(50))
        assert set(user.audio.values()) == {said(2)}
    assert voice.most_open <= 2


def test_a_full_server_refuses_a_context_and_not_the_others() -> None:
    gate = threading.Event()
    voice = FakeVoice(n_chunks=2, gate=gate)
    with serving(voice, max_concurrent=1, max_queue=0) as live, client(live) as user:
        user.speak("a")
        until(lambda: live.service.running == 1)
        user.speak("b")
        user.until_final("b")
        (error,) = user.errors
        assert (error["error"], error["contextId"]) == ("busy", "b")
        gate.set()
        assert user.until_final("a") == said(2)


def test_a_sixth_context() -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.01)
    with serving(voice) as live:
        with client(live) as user:
            for n in range(6):
                user.say(f"c{n}")
            assert user.until_closed() == 1008
            assert user.errors[-1]["error"] == "max_active_conversations"
        until(lambda: quiet(live, voice))


def test_a_failing_voice_costs_one_context() -> None:
    voice = FakeVoice(n_chunks=2, error=EngineFailure("a tensor is NaN"))
    with serving(voice) as live, client(live) as user:
        voice.fail_at = 1
        user.speak("a")
        user.until_final("a")
        (error,) = user.errors
        assert (error["error"], error["contextId"]) == ("engine_error", "a")
        voice.fail_at = None
        user.speak("b")
        assert user.until_final("b") == said(2)


@pytest.mark.parametrize("text", ["...", "***", "🙂", "\u200b!", "<b></b>!"])
def test_nothing_to_speak_is_a_short_silence(text: str) -> None:
    with serving(FakeVoice()) as live, client(live) as user:
        user.speak("a", text)
        audio = user.until_final("a")
        assert 0.1 < len(audio) / 2 / RATE < 1
        assert user.errors == []


def test_odd_text_in_odd_pieces() -> None:
    text = (
        "👩‍👩‍👧 says: «1,234.5» …\u202e\ud83d\ude42 你好。\n\n# Title\n* `code` http://a.b/c?d=e "
    )
    text = text.encode("utf-16", "surrogatepass").decode("utf-16")
    with serving(FakeVoice(n_chunks=1)) as live, client(live) as user:
        for char in text:
            user.say("a", char)
        user.send(context_id="a", flush=True)
        user.send(context_id="a", close_context=True)
        assert user.until_final("a")
        assert user.errors == []


def test_bad_messages_keep_the_socket() -> None:
    with serving(FakeVoice(n_chunks=1)) as live, client(live) as user:
        bad: list[str | bytes] = [
            "",
            "hello",
            "[]",
            '{"text": 1}',
            '{"text": null}',
            '{"txt": "Hello."}',
            '{"text": "a", "context_id": {}}',
            '{"text": "\\ud800", "context_id": "a"}',
            '{"text": "a", "context_id": "a", "voice_settings": {"speed": 99}}',
            '{"close_context": "yes", "context_id": "a"}',
            "[" * 100_000,
            b"\0\1\2\3",
            json.dumps({"text": "x" * 300_000, "context_id": "a"}),
            json.dumps({"text": "x" * 30_000, "context_id": "a"}),
        ]
        for message in bad:
            user.socket.send(message)
            assert "error" in user.receive()
            assert user.errors[-1]["error"] != "internal_error"
            assert "code" not in user.errors[-1]  # of a close frame
        user.speak("b")
        assert user.until_final("b") == said(1)


@pytest.mark.parametrize("polite", [True, False])
@pytest.mark.parametrize("waiting", [True, False])
def test_a_client_that_vanishes_frees_everything(polite: bool, waiting: bool) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    with serving(voice, max_concurrent=1, max_queue=4) as live:
        for _ in range(5):
            with client(live) as user:
                for n in range(3 if waiting else 1):
                    user.say(f"c{n}", "An endless text. ")
                    user.send(context_id=f"c{n}", flush=True)
                while not user.audio:
                    user.receive()
                if not polite:
                    user.socket.socket.shutdown(socket.SHUT_RDWR)
            until(lambda: quiet(live, voice))
        voice.n_chunks = 2
        with client(live) as user:
            user.speak("a")
            assert user.until_final("a") == said(2)


def test_an_idle_context_gives_its_slot_back_and_speaks_again() -> None:
    voice = FakeVoice(n_chunks=2)
    with serving(voice, max_concurrent=1, max_queue=0) as live, client(live) as user:
        user.say("a")
        user.send(context_id="a", flush=True)
        until(lambda: live.service.running == 1)
        until(lambda: live.service.running == 0, 15)
        user.say("a")
        user.send(context_id="a", flush=True)
        user.send(context_id="a", close_context=True)
        assert user.until_final("a") == said(2) * 2
        assert user.finals == ["a"]


def test_silence_ends_the_connection() -> None:
    query = "output_format=pcm_24000&inactivity_timeout=1"
    with serving(FakeVoice(n_chunks=1)) as live:
        with client(live, query=query) as user:
            user.send(text=" ", context_id="a")
            assert user.until_closed() == 1008
            assert user.errors[-1]["error"] == "input_timeout_exceeded"
        with client(live, query=query) as user:
            assert user.until_closed() == 1000
            assert user.errors == []


@pytest.mark.parametrize(
    ("voice", "query", "word"),
    [
        ("nobody", "", "anna"),
        ("anna", "output_format=mp3_7_7", "mp3_44100_128"),
        ("anna", "language_code=tlh", "tlh"),
        ("anna", "seed=minus", "seed"),
        ("anna", "inactivity_timeout=0", "inactivity_timeout"),
        ("x" * 300, "", "200"),
    ],
)
@pytest.mark.parametrize("kind", ["multi-stream-input", "stream-input"])
def test_an_address_that_asks_for_too_much(kind: str, voice: str, query: str, word: str) -> None:
    with serving(FakeVoice()) as live, client(live, kind, voice, query) as user:
        user.send(text=" ")
        assert user.until_closed() == 1008
        (error,) = user.errors
        assert word in error["message"]


def test_keys() -> None:
    with serving(FakeVoice(n_chunks=1), api_keys=("secret",)) as live:
        with client(live) as user:
            user.send(text=" ", context_id="a")
            assert user.until_closed() == 1008
        with client(live, additional_headers={"xi-api-key": "wrong"}) as user:
            user.send(text=" ", context_id="a")
            assert user.until_closed() == 1008
            assert user.errors[0]["message"] == "the API key that was sent is not accepted"
        with client(live) as user:
            user.send(text=" ", context_id="a", xi_api_key="secret")
            user.speak("a")
            assert user.until_final("a") == said(1)
        with client(live, additional_headers={"xi-api-key": "secret"}) as user:
            user.speak("a")
            assert user.until_final("a") == said(1)
        with client(live, query="output_format=pcm_24000&api_key=secret") as user:
            user.speak("a")
            assert user.until_final("a") == said(1)


def test_too_many_connections() -> None:
    with serving(FakeVoice(n_chunks=1), max_sessions=1) as live:
        with client(live) as first:
            first.speak("a")
            first.until_final("a")
            with client(live) as second:
                assert second.until_closed() == 1013
                assert second.errors[0]["error"] == "busy"
            first.speak("b")
            first.until_final("b")


@pytest.mark.parametrize(
    "name", ["mp3_22050_32", "mp3_44100_128", "opus_48000_64", "ulaw_8000", "pcm_16000", "pcm_8000"]
)
def test_formats(name: str) -> None:
    with serving(FakeVoice(n_chunks=10)) as live, client(live, query=f"output_format={name}") as u:
        u.speak("a")
        audio = u.until_final("a")
        seconds = 10 * FRAME / RATE
        if name.startswith("pcm"):
            assert abs(len(audio) / 2 / int(name[4:]) - seconds) < 0.02
        elif name.startswith("ulaw"):
            assert abs(len(audio) / 8000 - seconds) < 0.02
        else:
            assert abs(decoded_seconds(audio) - seconds) < 0.08
        assert u.errors == []


def decoded_seconds(audio: bytes) -> float:
    with av.open(io.BytesIO(audio), "r") as container:
        return sum(float(f.samples) / f.sample_rate for f in container.decode(audio=0))


def test_single_context() -> None:
    voice = FakeVoice(n_chunks=3)
    with serving(voice) as live, client(live, "stream-input") as user:
        user.send(text=" ", voice_settings={"stability": 0.3}, generation_config={})
        user.send(text="Hello ", try_trigger_generation=True)
        user.send(text="world. ", flush=True)
        user.send(text="")
        assert user.until_closed() == 1000
        assert user.finals == [""]
        assert user.audio[""] == said(3)


def test_single_context_that_fails() -> None:
    voice = FakeVoice(error=EngineFailure("a tensor is NaN"))
    with serving(voice) as live, client(live, "stream-input") as user:
        voice.fail_at = 0
        user.send(text="Hello. ")
        user.send(text="")
        assert user.until_closed() == 1011
        assert user.errors[0]["error"] == "engine_error"
        assert user.finals == []


def test_the_server_leaves_politely() -> None:
    voice = FakeVoice(n_chunks=30, delay_s=0.02)
    with serving(voice) as live:
        with client(live) as user:
            user.speak("a")
            while not user.audio:
                user.receive()
            live.server.should_exit = True
            assert user.until_closed() in (1001, 1012)
            assert user.audio["a"] == said(30)
