"""Retries, and every way in which a server can fail its client."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

import pytest
from client_tools import Naps, scripted, spoken
from fake_voice import FRAME, FakeVoice
from live import Live, serving, until
from websockets.sync.server import ServerConnection, serve

from kazeia_client import (
    ApiError,
    AsyncClient,
    Busy,
    Client,
    ConnectionFailed,
    ConnectionLost,
    KazeiaError,
    Loading,
    Retry,
    ServerFailure,
    ShuttingDown,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    UsageError,
    VoiceFailed,
)
from kazeia_client.retry import RetryPlan
from kazeia_server.errors import EngineFailure, VoiceLoadError

HEALTH = json.dumps(
    {
        "version": "1",
        "state": "ready",
        "voice_source": "built-in",
        "model": None,
        "running": 0,
        "waiting": 0,
        "something_new": 1,
    }
).encode()
OK = (200, {"content-type": "application/json"}, HEALTH)
NEVER = Retry(budget_s=0)


def error(status: int, code: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    body = {"error": {"message": f"it is {code}", "type": "t", "param": None, "code": code}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, named, json.dumps(body).encode()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ---- retries -------------------------------------------------------------------


def test_retry_after_is_obeyed() -> None:
    naps = Naps()
    answers = [
        error(503, "busy", retry_after="7"),
        error(429, "slow_down", retry_after="2.5"),
        error(503, "loading", retry_after="0"),
        (502, {}, b"<html>a proxy's page"),
        OK,
    ]
    with scripted(*answers) as (url, asked), Client(url, retry=naps.retry()) as client:
        assert client.health().is_ready
    # Where nothing is asked for, half of 0.5 s doubled with every try, as the jitter is 0.
    assert naps.naps == [7.0, 2.5, 1.0, 2.0]
    assert len(asked) == 5


def test_retry_after_may_be_a_date() -> None:
    naps = Naps()
    later = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=20), usegmt=True)
    past = format_datetime(datetime.now(timezone.utc) - timedelta(seconds=20), usegmt=True)
    answers = [
        error(503, "busy", retry_after=later),
        error(503, "busy", retry_after=past),
        error(503, "busy", retry_after="some day"),
        OK,
    ]
    with scripted(*answers) as (url, _), Client(url, retry=naps.retry(budget_s=100)) as client:
        client.health()
    assert 10 < naps.naps[0] <= 20
    assert naps.naps[1:] == [0.5, 1.0]


def test_a_wait_beyond_the_budget_is_not_begun() -> None:
    naps = Naps()
    answer = error(503, "busy", retry_after="31")
    with scripted(answer) as (url, _), Client(url, retry=naps.retry()) as client:
        with pytest.raises(Busy, match="it is busy") as caught:
            client.health()
    assert naps.naps == []
    assert (caught.value.retry_after_s, caught.value.status) == (31.0, 503)
    with scripted(*[answer] * 4) as (url, _):
        with Client(url, retry=naps.retry(budget_s=100)) as client, pytest.raises(Busy):
            client.health()
    assert naps.naps == [31.0] * 3  # 93 of 100 seconds


def test_waits_grow_are_bounded_and_scattered() -> None:
    async def waits(jitter: float) -> list[float]:
        naps = Naps()
        plan = RetryPlan(naps.retry(jitter, budget_s=40))
        with pytest.raises(ConnectionFailed):
            while True:
                await plan.wait_after(ConnectionFailed("refused"))
        return naps.naps

    assert asyncio.run(waits(1.0)) == [0.5, 1, 2, 4, 8, 8, 8, 8]
    least = asyncio.run(waits(0.0))
    assert least[:7] == [0.25, 0.5, 1, 2, 4, 4, 4]
    assert sum(least) <= 40


def test_whoever_asks_is_told_why_it_waits() -> None:
    naps, told = Naps(), []
    retry = Retry(
        sleep=naps.sleep, jitter=lambda: 0.0, waiting=lambda e, s: told.append((str(e), s))
    )
    with scripted(error(503, "loading", retry_after="1"), OK) as (url, _):
        with Client(url, retry=retry) as client:
            client.health()
    assert told == [("it is loading", 1.0)]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(400, "invalid_request"), ApiError),
        (error(401, "invalid_api_key"), Unauthorized),
        (error(500, "engine_error"), ServerFailure),
        (error(503, "voice_failed", x_should_retry="false"), VoiceFailed),
        (error(503, "something", x_should_retry="false", retry_after="1"), Unavailable),
        (error(418, "teapot"), ApiError),
        ((404, {}, b"<html>Not Found"), UnexpectedAnswer),
        ((308, {"location": "https://example.org"}, b""), UnexpectedAnswer),
        ((200, {}, b"<html>hello"), UnexpectedAnswer),
        ((200, {}, b"[]"), UnexpectedAnswer),
        ((200, {}, b'{"version": "1"}'), UnexpectedAnswer),
    ],
)
def test_what_waiting_does_not_change_is_not_tried_again(
    answer: tuple[int, dict[str, str], bytes], kind: type[KazeiaError]
) -> None:
    naps = Naps()
    with scripted(answer, OK) as (url, asked), Client(url, retry=naps.retry()) as client:
        with pytest.raises(kind):
            client.health()
    assert naps.naps == []
    assert len(asked) == 1


def test_a_connection_that_ends_unanswered_is_tried_once_more() -> None:
    naps = Naps()
    with scripted(None, OK) as (url, _), Client(url, retry=naps.retry()) as client:
        assert client.health().is_ready
    assert naps.naps == [0.25]
    with scripted(None, None, OK) as (url, asked), Client(url, retry=naps.retry()) as client:
        with pytest.raises(ConnectionLost):
            client.health()
    assert len(asked) == 2


def test_nothing_is_tried_again_once_an_answer_has_begun() -> None:
    naps = Naps()
    half = (200, {"content-length": "1000", "connection": "close"}, b"RIFF")
    with scripted(half, OK) as (url, asked), Client(url, retry=naps.retry()) as client:
        with pytest.raises(ConnectionLost, match="broke off"):
            client.synthesize("Hello.")
    assert (naps.naps, len(asked)) == ([], 1)


def test_a_server_that_starts_is_waited_for() -> None:
    """Nothing listens at first, then the voice is being loaded, then it speaks."""
    port, loaded = unused_port(), threading.Event()
    voice = FakeVoice(n_chunks=3)
    for use in ("synthesize", "stream", "session"):
        with ExitStack() as stack:
            loaded.clear()

            def load(_: Any) -> FakeVoice:
                assert loaded.wait(20)
                return voice

            def meanwhile(n: int, stack: ExitStack = stack) -> None:
                if n == 2:
                    stack.enter_context(serving(load=load, ready=False, port=port))
                elif n == 4:
                    loaded.set()

            naps = Naps(meanwhile)
            told: list[str] = []
            retry = Retry(
                sleep=naps.sleep,
                jitter=lambda: 0.0,
                budget_s=1e6,
                waiting=lambda e, _, told=told: told.append(type(e).__name__),
            )
            stack.callback(loaded.set)
            with Client(f"http://127.0.0.1:{port}", retry=retry) as client:
                if use == "synthesize":
                    audio = client.synthesize("Hello.").pcm
                elif use == "stream":
                    audio = client.stream("Hello.").read()
                else:
                    with client.session() as session:
                        audio = session.speak("Hello.").read()
            assert audio == spoken(voice, 3, stream=-1)
            assert told[:2] == ["ConnectionFailed"] * 2
            assert set(told[2:]) == {"Loading"}


def test_a_busy_server_is_waited_for() -> None:
    voice = FakeVoice(n_chunks=3, gate=threading.Event())
    naps = Naps(lambda n: voice.gate.set() if n == 2 and voice.gate else None)
    with serving(voice, max_concurrent=1, max_queue=0) as live:
        with Client(live.url, retry=naps.retry()) as client, Client(live.url) as other:
            occupying = threading.Thread(target=lambda: other.synthesize("I am first."))
            occupying.start()
            until(lambda: live.service.running == 1)
            assert client.stream(iter(["Written ", "twice."])).read() == spoken(voice, 3, -1)
            occupying.join(10)
    assert naps.naps[:2] == [1.0, 1.0]  # what the server asked for
    assert voice.texts[-1] == "Written twice."


def test_a_server_that_stays_busy_says_so() -> None:
    voice = FakeVoice(n_chunks=None)
    with serving(voice, max_concurrent=1, max_queue=0) as live:
        with Client(live.url, retry=NEVER) as client, client.stream("Endless.") as speech:
            next(speech)
            with pytest.raises(Busy) as caught:
                client.synthesize("Hello.")
            assert (caught.value.status, caught.value.code) == (503, "busy")
            assert caught.value.retry_after_s == 1.0
            with pytest.raises(Busy) as caught:
                client.stream("Hello.").read()
            assert (caught.value.status, caught.value.retry_after_s) == (None, 1.0)


def test_too_many_connections() -> None:
    with serving(FakeVoice(n_chunks=1), max_sessions=1) as live:
        naps = Naps()
        with Client(live.url, retry=NEVER) as first, first.session():
            with Client(live.url, retry=naps.retry(budget_s=3)) as client, pytest.raises(Busy):
                client.stream("Hello.").read()
    assert len(naps.naps) >= 2


# ---- addresses and keys ------------------------------------------------------------


def test_nothing_listens() -> None:
    with Client(f"http://127.0.0.1:{unused_port()}", retry=NEVER) as client:
        for ask in (
            client.health,
            lambda: client.synthesize("Hello."),
            client.stream("Hello.").read,
            lambda: client.session().__enter__(),
        ):
            with pytest.raises(ConnectionFailed, match="nothing answers at http://127"):
                ask()


def test_a_name_that_does_not_exist_is_not_waited_for() -> None:
    naps = Naps()
    with Client("http://no-such-host.invalid", retry=naps.retry()) as client:
        for ask in (client.health, client.stream("Hello.").read):
            with pytest.raises(ConnectionFailed, match=r"no-such-host\.invalid"):
                ask()
    assert naps.naps == []


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8080", "ftp://host", "ws://host", "http://", "http://host:port", "http://[::1"],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        Client(url)


@pytest.mark.parametrize("url", ["http://h/?a=b", "http://h/#a", "http://h/a b", "http://h\n"])
def test_what_is_more_than_an_address(url: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        AsyncClient(url)


def test_an_address_where_something_else_answers() -> None:
    page = (404, {}, b"<html>nothing here")
    with scripted(*[page] * 8) as (url, asked), Client(url, retry=NEVER) as client:
        for ask in (
            client.voices,
            lambda: client.synthesize("Hello."),
            client.stream("Hello.").read,
            lambda: client.session().__enter__(),
        ):
            with pytest.raises(UnexpectedAnswer, match="status 404: <html>nothing here"):
                ask()
    assert "/ws/synthesize" in asked
    with socket.create_server(("127.0.0.1", 0)) as mute:  # and one that is no HTTP at all

        def answer() -> None:
            for _ in range(2):
                connection, _ = mute.accept()
                connection.recv(4096)
                connection.sendall(b'{"type": "info"}\n')
                connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with Client(url, retry=NEVER) as client:
            for ask in (client.health, client.stream("Hello.").read):
                with pytest.raises((UnexpectedAnswer, ConnectionLost)):
                    ask()
        thread.join(5)


def test_the_address_and_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(FakeVoice(n_chunks=1), api_keys=("öffne", "sesame")) as live:
        monkeypatch.setenv("KAZEIA_URL", live.url + "/")
        monkeypatch.setenv("KAZEIA_API_KEY", "sesame")
        with Client() as client:
            assert client.base_url == live.url
            assert client.synthesize("Hello.").stats.frames == 1
        monkeypatch.delenv("KAZEIA_API_KEY")
        with Client(api_key="sesame") as client:
            assert client.stream("Hello.").read()
    monkeypatch.delenv("KAZEIA_URL")
    with Client() as client:
        assert client.base_url == "http://127.0.0.1:8080"


@pytest.mark.parametrize("key", [None, "wrong"])
def test_a_key_that_is_missing_or_wrong(key: str | None) -> None:
    naps = Naps()
    with serving(FakeVoice(n_chunks=1), api_keys=("sesame",)) as live:
        with Client(live.url, api_key=key, retry=naps.retry()) as client:
            for ask in (
                client.voices,
                lambda: client.synthesize("Hello."),
                client.stream("Hello.").read,
            ):
                with pytest.raises(Unauthorized, match="key") as caught:
                    ask()
                assert caught.value.code == "invalid_api_key"
            assert client.health().is_ready  # needs none
    assert naps.naps == []


def test_a_key_reaches_a_server_whose_proxy_keeps_the_headers() -> None:
    """The first message brings the key where the header does not arrive."""
    seen: list[dict[str, Any]] = []

    def server(connection: ServerConnection) -> None:
        for data in connection:
            seen.append(json.loads(data))
            if seen[-1]["type"] == "ping":
                connection.send('{"type": "pong"}')

    with serve(server, "127.0.0.1", 0) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        port = listening.socket.getsockname()[1]
        with (
            pytest.raises(KazeiaError),
            Client(
                f"http://127.0.0.1:{port}", api_key="sesame", retry=NEVER, patience_s=0.2
            ) as client,
        ):
            client.stream("Hello.").read()
        listening.shutdown()
        thread.join(5)
    assert seen[0] == {"type": "session.auth", "key": "sesame"}
    assert [message["type"] for message in seen[1:3]] == ["session.config", "ping"]


@pytest.mark.parametrize("key", ["", " ", "two\nlines", "clé"])
def test_what_is_no_key(key: str) -> None:
    with pytest.raises(UsageError, match="printable ASCII"):
        Client("http://127.0.0.1", api_key=key)


def test_a_key_and_a_password_are_not_shown() -> None:
    client = AsyncClient("http://me:secret@127.0.0.1:1", api_key="sesame", retry=NEVER)
    with pytest.raises(ConnectionFailed) as caught:
        asyncio.run(client.health())
    for text in (repr(client._link), str(caught.value), client.base_url):
        assert "sesame" not in text
    assert "secret" not in str(caught.value) + client.base_url


# ---- a server that fails ------------------------------------------------------------


@pytest.fixture
def voice() -> FakeVoice:
    return FakeVoice(n_chunks=None)


@pytest.fixture
def live(voice: FakeVoice) -> Iterator[Live]:
    with serving(voice, shutdown_timeout_s=0) as live:
        yield live


def test_a_voice_that_fails(live: Live, voice: FakeVoice) -> None:
    voice.fail_at, voice.error = 2, EngineFailure("NaN in the logits")
    naps = Naps()
    with Client(live.url, retry=naps.retry()) as client:
        with pytest.raises(ServerFailure, match="NaN") as caught:
            client.synthesize("Hello.")
        assert (caught.value.status, caught.value.code) == (500, "engine_error")
        assert not caught.value.should_retry
        heard = b""
        with pytest.raises(ServerFailure, match="NaN"):
            for chunk in client.stream("Hello."):
                heard += chunk
        assert len(heard) == 2 * FRAME * 2  # what was made of it is not lost
    assert naps.naps == []


def test_a_voice_that_cannot_be_loaded() -> None:
    def load(_: Any) -> FakeVoice:
        raise VoiceLoadError("the file is broken")

    naps = Naps()
    with serving(load=load) as live, Client(live.url, retry=naps.retry()) as client:
        for ask in (
            lambda: client.synthesize("Hello."),
            client.stream("Hello.").read,
            lambda: client.session().__enter__(),
            client.wait_until_ready,
        ):
            with pytest.raises(VoiceFailed, match="the file is broken"):
                ask()
        assert client.health().failure == "the file is broken"
    assert naps.naps == []


def test_a_server_that_goes_away_in_the_middle(live: Live) -> None:
    naps = Naps()
    with Client(live.url, retry=naps.retry()) as client:
        with client.stream("An endless text.") as speech, client.session() as session:
            utterance = session.speak("Another.")
            next(speech)
            next(utterance)
            live.server.should_exit = True
            for broken in (speech, utterance):
                with pytest.raises((ShuttingDown, ConnectionLost)):
                    for _ in broken:
                        pass
            with pytest.raises((ShuttingDown, ConnectionLost)):
                session.utterance()
    assert naps.naps == []


def test_a_connection_that_breaks_in_the_middle() -> None:
    """Not closed, but cut: no close frame, and the audio before it is still heard."""
    start = {
        "type": "audio.start",
        "utterance_index": 0,
        "format": "pcm",
        "sample_rate": 24_000,
        "channels": 1,
    }

    def server(connection: ServerConnection) -> None:
        for data in connection:
            kind = json.loads(data)["type"]
            if kind == "ping":
                connection.send('{"type": "pong"}')
            elif kind == "input.done":
                connection.send(json.dumps(start))
                connection.send(b"\1\2")
                connection.socket.shutdown(socket.SHUT_RDWR)
                return

    naps = Naps()
    with serve(server, "127.0.0.1", 0) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        port = listening.socket.getsockname()[1]
        with Client(f"http://127.0.0.1:{port}", retry=naps.retry()) as client:
            heard = b""
            with pytest.raises(ConnectionLost, match="before the speech did"):
                for chunk in client.stream("Hello."):
                    heard += chunk
        listening.shutdown()
        thread.join(5)
    assert heard == b"\1\2"
    assert naps.naps == []


def test_loading_is_an_error_where_no_wait_is_wanted() -> None:
    loaded = threading.Event()

    def load(_: Any) -> FakeVoice:
        assert loaded.wait(20)
        return FakeVoice(n_chunks=1)

    with serving(load=load, ready=False) as live, Client(live.url, retry=NEVER) as client:
        try:
            for ask in (
                lambda: client.synthesize("Hello."),
                client.stream("Hello.").read,
                lambda: client.wait_until_ready(0),
            ):
                with pytest.raises(Loading) as caught:
                    ask()
                assert caught.value.retry_after_s
            assert client.health().state == "loading"
        finally:
            loaded.set()


def test_retry_is_checked() -> None:
    for wrong in ({"budget_s": -1}, {"base_s": 0}, {"max_s": 0}):
        with pytest.raises(UsageError, match="budget_s of at least 0"):
            Retry(**wrong)  # type: ignore[arg-type]
