"""Operations over real sockets: keys, origins, ids, limits, metrics, clients that drop."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from fake_voice import FRAME, FakeVoice
from live import Live, Session, serving, until
from prometheus_client.parser import text_string_to_metric_families as parse
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

KEY = "a-key-of-the-test"


def request(live: Live, method: str, path: str, **options: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=20) as client:
        return client.request(method, live.url + path, **options)


def metric(live: Live, name: str, **headers: str) -> float:
    """The sum over all labels of a metric's sample."""
    response = request(live, "GET", "/metrics", headers=headers)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    samples = [sample for family in parse(response.text) for sample in family.samples]
    assert any(sample.name.startswith("kazeia_") for sample in samples)
    return sum(sample.value for sample in samples if sample.name == name)


def close_code(websocket: ClientConnection) -> int:
    """Read to the end; the code with which the server closes."""
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            websocket.recv(timeout=15)
    assert closed.value.rcvd is not None
    return int(closed.value.rcvd.code)


# ---- keys --------------------------------------------------------------------


@pytest.fixture(scope="module")
def keyed() -> Iterator[Live]:
    with serving(FakeVoice(), api_keys=(KEY, "another")) as live:
        yield live


@pytest.mark.parametrize(
    ("headers", "query", "status"),
    [
        ({}, "", 401),
        ({"authorization": "Bearer wrong"}, "", 401),
        ({"authorization": f"Bearer {KEY}"}, "", 200),
        ({"xi-api-key": "another"}, "", 200),
        ({}, f"?token={KEY}", 200),
        ({}, "?api_key=wrong", 401),
    ],
)
def test_keys_over_http(keyed: Live, headers: dict[str, str], query: str, status: int) -> None:
    answer = request(keyed, "POST", f"/synthesize{query}", json={"text": "Hi."}, headers=headers)
    assert answer.status_code == status
    assert answer.headers["x-request-id"]
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    "path", ["/health", "/readyz", "/docs", "/openapi.json", "/v1/audio/voices", "/v1/audio/models"]
)
def test_what_needs_no_key(keyed: Live, path: str) -> None:
    assert keyed.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/v1/voices", "/nowhere"])
def test_what_needs_a_key(keyed: Live, path: str) -> None:
    assert keyed.get(path).status_code == 401
    headers = {"x-api-key": KEY}
    expected = 404 if path == "/nowhere" else 200
    assert request(keyed, "GET", path, headers=headers).status_code == expected


@pytest.mark.parametrize(
    ("headers", "query"),
    [({"Authorization": f"Bearer {KEY}"}, ""), ({"xi-api-key": KEY}, ""), ({}, f"?token={KEY}")],
)
def test_keys_of_a_websocket_handshake(keyed: Live, headers: dict[str, str], query: str) -> None:
    with connect(keyed.ws_url + query, proxy=None, additional_headers=headers) as websocket:
        session = Session(websocket)
        session.say("Hello.")
        session.until("session.done")


def test_the_key_as_first_message(keyed: Live) -> None:
    with connect(keyed.ws_url, proxy=None) as websocket:
        session = Session(websocket)
        session.send("session.auth", key=KEY)
        session.say("Hello.")
        session.until("session.done")


@pytest.mark.parametrize(
    "first", [{"type": "session.auth", "key": "wrong"}, {"type": "input.text", "text": "Hi."}]
)
def test_a_websocket_without_a_key(keyed: Live, first: dict[str, str]) -> None:
    with connect(keyed.ws_url, proxy=None) as websocket:
        websocket.send(json.dumps(first))
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                message = json.loads(websocket.recv(timeout=10))
                assert message["type"] == "error"
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


def test_a_key_guards_even_the_size_check(keyed: Live) -> None:
    assert keyed.post(b"x" * (2 << 20)).status_code == 401


# ---- origins ------------------------------------------------------------------


def test_pages_of_other_sites() -> None:
    with serving(FakeVoice()) as live:
        foreign = {"origin": "https://evil.example"}
        own = {"origin": live.url}
        body = {"text": "Hi."}
        refused = request(live, "POST", "/synthesize", json=body, headers=foreign)
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "forbidden_origin"
        assert refused.headers["x-request-id"]
        assert request(live, "POST", "/synthesize", json=body, headers=own).status_code == 200
        with pytest.raises(InvalidStatus) as denied:
            with connect(live.ws_url, proxy=None, additional_headers=foreign):
                pass
        assert denied.value.response.status_code == 403
        assert denied.value.response.headers["x-request-id"]
        with connect(live.ws_url, proxy=None, additional_headers=own) as websocket:
            session = Session(websocket)
            session.say("Hello.")
            session.until("session.done")


def test_cors() -> None:
    preflight = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,xi-api-key",
    }
    allowed = "https://app.example"
    with serving(FakeVoice(), cors_origins=(allowed,), api_keys=(KEY,)) as live:
        good = request(live, "OPTIONS", "/synthesize", headers={"origin": allowed, **preflight})
        assert good.status_code == 200
        assert good.headers["access-control-allow-origin"] == allowed
        headers = good.headers["access-control-allow-headers"].lower()
        assert {"authorization", "content-type", "xi-api-key"} <= set(headers.split(", "))
        bad = request(
            live, "OPTIONS", "/synthesize", headers={"origin": "https://evil.example", **preflight}
        )
        assert "access-control-allow-origin" not in bad.headers
        for key, status in ((KEY, 200), ("wrong", 401)):
            answer = request(
                live,
                "POST",
                "/synthesize",
                json={"text": "Hi."},
                headers={"origin": allowed, "authorization": f"Bearer {key}"},
            )
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == allowed
            exposed = answer.headers["access-control-expose-headers"]
            assert {"x-request-id", "x-kazeia-ttfb"} <= set(exposed.split(", "))


def test_cors_for_everybody_goes_without_credentials() -> None:
    with serving(FakeVoice(), cors_origins=("*",)) as live:
        answer = request(live, "GET", "/health", headers={"origin": "https://any.example"})
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


def test_no_cors_by_default() -> None:
    with serving(FakeVoice()) as live:
        answer = request(live, "GET", "/health", headers={"origin": "https://any.example"})
        assert not any(name.startswith("access-control") for name in answer.headers)


# ---- ids, errors, prefixes, documentation ---------------------------------------


def test_request_ids_on_every_answer() -> None:
    voice = FakeVoice()
    with serving(voice, max_body_bytes=1024) as live:
        voice.fail_open = RuntimeError("broken")
        cases = [
            ("GET", "/health", None, 200),
            ("GET", "/nowhere", None, 404),
            ("DELETE", "/health", None, 405),
            ("POST", "/synthesize", b"{}", 415),
            ("POST", "/synthesize", b"x" * 2000, 413),
        ]
        for method, path, content, status in cases:
            headers = {"x-request-id": f"id-{status}"}
            answer = request(live, method, path, content=content, headers=headers)
            assert answer.status_code == status
            assert answer.headers["x-request-id"] == f"id-{status}"
        failed = request(
            live, "POST", "/synthesize", json={"text": "Hi."}, headers={"x-request-id": "id-500"}
        )
        assert failed.status_code == 500
        assert failed.headers["x-request-id"] == "id-500"
        assert failed.headers["x-should-retry"] == "false"
        with connect(
            live.ws_url, proxy=None, additional_headers={"x-request-id": "id-ws"}
        ) as websocket:
            assert websocket.response is not None
            assert websocket.response.headers["x-request-id"] == "id-ws"


def test_unknown_places_in_the_shape_of_openai() -> None:
    with serving(FakeVoice()) as live:
        for path in ("/v1/nowhere", "/v1/models/no-such-model"):
            answer = live.get(path)
            assert answer.status_code == 404
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_path_prefix() -> None:
    with serving(FakeVoice(), root_path="/tts/", api_keys=(KEY,)) as live:
        for path in ("/tts/health", "/health", "/tts/docs"):  # proxies strip the prefix or do not
            assert live.get(path).status_code == 200
        assert live.get("/tts/metrics").status_code == 401
        assert live.get("/tts/openapi.json").json()["servers"] == [{"url": "/tts"}]


def test_the_documentation_needs_no_network() -> None:
    with serving(FakeVoice()) as live:
        page = live.get("/docs")
        assert page.status_code == 200
        assert "http://" not in page.text
        assert "https://" not in page.text
        for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"):
            assert f"docs/{name}" in page.text
            assert len(live.get(f"/docs/{name}").content) > 100
        assert live.get("/docs/redoc.standalone.js").status_code == 404
        assert live.get("/docs/..%2f__init__.py").status_code == 404
        paths = live.get("/openapi.json").json()["paths"]
        assert {"/synthesize", "/health", "/metrics"} <= set(paths)
        assert "403" in paths["/synthesize"]["post"]["responses"]


def test_the_description_tells_of_keys(keyed: Live) -> None:
    schema = keyed.get("/openapi.json").json()
    post = schema["paths"]["/synthesize"]["post"]
    assert post["security"]
    assert {"401", "408", "413"} <= set(post["responses"])
    assert "security" not in schema["paths"]["/health"]["get"]
    assert "422" not in json.dumps(schema)


# ---- slow and huge requests ------------------------------------------------------


def test_a_body_that_trickles() -> None:
    with serving(FakeVoice(), send_timeout_s=0.5) as live:
        raw = socket.create_connection(("127.0.0.1", live.port), timeout=10)
        raw.sendall(
            b"POST /synthesize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n"
        )
        stop = threading.Event()

        def trickle() -> None:
            with suppress(OSError):
                while not stop.wait(0.1):
                    raw.sendall(b" ")

        thread = threading.Thread(target=trickle)
        thread.start()
        answer = b""
        with suppress(OSError):
            while data := raw.recv(4096):
                answer += data
        stop.set()
        thread.join()
        raw.close()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"request_timeout"' in answer
        assert live.post({"text": "Still here."}).status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_that_never_begins(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kazeia_server.ops.connections.BoundedHttp.head_timeout_s", 0.3)
    with serving(FakeVoice()) as live, socket.create_connection(("127.0.0.1", live.port)) as raw:
        raw.settimeout(10)
        raw.sendall(sent)
        assert raw.recv(100) == b""  # closed, rather than waited for


def test_time_limits_concern_only_what_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kazeia_server.ops.connections.BoundedHttp.head_timeout_s", 0.2)
    voice = FakeVoice(n_chunks=4, delay_s=0.3)
    with serving(voice) as live:
        with connect(live.ws_url, proxy=None) as websocket:
            assert live.post({"text": "slow"}).status_code == 200
            time.sleep(0.5)
            session = Session(websocket)
            session.say("Hello.")
            session.until("session.done")


def test_a_request_head_without_end() -> None:
    with serving(FakeVoice()) as live, socket.create_connection(("127.0.0.1", live.port)) as raw:
        raw.settimeout(10)
        answer = b""
        with suppress(OSError):
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: ")
            for _ in range(100):
                raw.sendall(b"a" * 10_000)
        with suppress(OSError):
            answer = raw.recv(4096)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
        with suppress(OSError):
            assert raw.recv(4096) == b""
        assert live.get("/health").status_code == 200


def test_a_large_body_is_no_head() -> None:
    with serving(FakeVoice(), max_text_chars=500_000) as live:
        for _ in range(3):
            body = {"text": "a" * 400_000, "max_frames": 3}
            assert live.post(body, connection="keep-alive").status_code == 200


# ---- clients that drop ------------------------------------------------------------

DROPS = 60


def ask(live: Live, path: str, body: dict[str, Any]) -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", live.port), timeout=10)
    content = json.dumps(body).encode()
    raw.sendall(
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n".encode()
        + content
    )
    return raw


def _drop_http(
    live: Live, path: str, body: dict[str, Any], unanswered: FakeVoice | None = None
) -> None:
    """Leave in the middle of the audio, or, where none comes before the end, of its making."""
    before = 0 if unanswered is None else len(unanswered.streams)
    raw = ask(live, path, body)
    if unanswered is None:
        head = b""
        while len(head) < 2000:
            data = raw.recv(4096)
            assert data, head
            head += data
        assert head.startswith(b"HTTP/1.1 200 ")
    else:
        until(lambda: len(unanswered.streams) > before, 10)
    raw.close()


def _drop_websocket(live: Live) -> None:
    with connect(live.ws_url, proxy=None, close_timeout=0) as websocket:
        session = Session(websocket)
        session.say("endless")
        while not isinstance(session.receive(), bytes):
            pass
        websocket.socket.shutdown(socket.SHUT_RDWR)  # without a closing handshake


@pytest.mark.parametrize("door", ["whole", "stream", "openai", "sse", "websocket"])
def test_dropped_in_the_middle(door: str) -> None:
    voice = FakeVoice(n_chunks=None, delay_s=0.002)
    openai = {"model": "tts-1", "input": "endless", "voice": "alloy", "response_format": "pcm"}
    with serving(voice, max_concurrent=2, max_queue=4) as live:
        for _ in range(DROPS):
            if door == "whole":
                _drop_http(live, "/synthesize", {"text": "endless"}, voice)
            elif door == "stream":
                _drop_http(live, "/synthesize?stream=1", {"text": "endless"})
            elif door == "openai":
                _drop_http(live, "/v1/audio/speech", openai)
            elif door == "sse":
                body = {**openai, "stream_format": "sse"}
                _drop_http(live, "/v1/audio/speech", body)
            else:
                _drop_websocket(live)
            assert live.get("/health").json()["status"] == "ok"
        until(lambda: live.service.running == 0 and live.service.waiting == 0, 20)
        assert voice.open_now == 0
        assert len(voice.streams) == DROPS
        until(lambda: metric(live, "kazeia_cancelled_total") == DROPS, 10)
        voice.n_chunks = 2
        assert live.post({"text": "Still here."}).status_code == 200


# ---- metrics ------------------------------------------------------------------------


def test_metrics_follow_what_happens() -> None:
    voice = FakeVoice(n_chunks=4)
    with serving(voice, max_concurrent=1, max_queue=0) as live:
        assert metric(live, "kazeia_ready") == 1
        assert metric(live, "kazeia_requests_total") == 0  # the warm-up is nobody's request
        assert live.post({"text": "Hello."}).status_code == 200
        assert metric(live, "kazeia_requests_total") == 1
        assert metric(live, "kazeia_ttfb_seconds_count") == 1
        assert metric(live, "kazeia_audio_seconds_total") == pytest.approx(4 * FRAME / 24_000)
        assert metric(live, "kazeia_errors_total") == 0
        assert live.post({"text": "Hello.", "voice": "nobody"}).status_code == 400
        assert metric(live, "kazeia_errors_total") == 1
        assert metric(live, "kazeia_audio_seconds_total") == pytest.approx(4 * FRAME / 24_000)
        for _ in range(3):
            live.get("/health")
            live.get("/nowhere")
        assert metric(live, "kazeia_requests_total") == 2  # those asked for no speech
        voice.gate = threading.Event()
        raw = ask(live, "/synthesize", {"text": "held"})
        until(lambda: metric(live, "kazeia_requests_running") == 1, 10)
        assert live.post({"text": "one too many"}).status_code == 503
        voice.gate.set()
        raw.recv(100)
        raw.close()
        until(lambda: metric(live, "kazeia_requests_running") == 0, 10)
        until(lambda: metric(live, "kazeia_event_loop_lag_seconds_count") > 0, 10)


def test_openmetrics_where_it_is_asked_for() -> None:
    with serving(FakeVoice()) as live:
        accept = {"accept": "application/openmetrics-text; version=1.0.0"}
        answer = request(live, "GET", "/metrics", headers=accept)
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert answer.text.endswith("# EOF\n")


def test_websockets_are_counted_and_bounded() -> None:
    with serving(FakeVoice(), max_sessions=2) as live:
        with connect(live.ws_url, proxy=None), connect(live.ws_url, proxy=None):
            until(lambda: metric(live, "kazeia_sessions") == 2, 10)
            with connect(live.ws_url, proxy=None) as third:
                assert close_code(third) == 1013
        until(lambda: metric(live, "kazeia_sessions") == 0, 10)
        with connect(live.ws_url, proxy=None) as websocket:
            session = Session(websocket)
            session.say("Hello.")
            session.until("session.done")
