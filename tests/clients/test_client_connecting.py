"""Which server the key and the text go to: TLS, redirects, proxies, and what is no address."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from client_tools import SHORT, scripted, scripted_socket, serve_short
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection

from kazeia_client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    KazeiaError,
    Retry,
    UnexpectedAnswer,
    UsageError,
)
from kazeia_client.address import Address
from kazeia_client.connecting import Link, http_errors

NEVER = Retry(budget_s=0)
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server_side(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def secure_port(server_side: ssl.SSLContext) -> Iterator[int]:
    """Of a server with a certificate that nobody knows."""
    with scripted_socket(serve_short, ssl=server_side) as port:
        yield port


@pytest.fixture(autouse=True)
def _no_proxy_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXIES, "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


# ---- TLS -----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["https", "HTTPS", "Https"])
def test_a_certificate_of_ones_own(authority: trustme.CA, secure_port: int, scheme: str) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    url = f"{scheme}://localhost:{secure_port}"
    with Client(url, retry=NEVER, ssl_context=context) as client:
        assert client.stream("Hello.").read() == SHORT


def test_a_certificate_that_the_environment_names(
    authority: trustme.CA, secure_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with Client(f"https://localhost:{secure_port}", retry=NEVER) as client:
        assert client.stream("Hello.").read() == SHORT


@pytest.mark.parametrize("scheme", ["https", "HTTPS", "Https"])
def test_a_certificate_of_nobody_is_refused(secure_port: int, scheme: str) -> None:
    with Client(f"{scheme}://localhost:{secure_port}", retry=NEVER, api_key="sesame") as client:
        for ask in (client.stream("Hello.").read, client.voices):
            with pytest.raises(ConnectionFailed, match=r"(?i)certificate") as caught:
                ask()
            assert not caught.value.transient


@pytest.mark.parametrize("url", ["HTTPS://host", "https://host", "http://host", "http://127.0.0.1"])
def test_certificates_are_always_checked(url: str) -> None:
    """Also of an http:// address: a proxy to it may be asked by TLS."""
    context = Link(Address.of(url, None), 1.0, None)._context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_certificates_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    with Client("https://localhost:1", retry=NEVER) as client:
        for ask in (client.health, client.stream("Hello.").read):
            with pytest.raises(UsageError, match=r"SSL_CERT_FILE=.*gone\.pem"):
                ask()


# ---- redirects -------------------------------------------------------------------


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status: int) -> None:
    """Neither the key nor the text reaches whatever a redirect names."""
    asked: list[Headers] = []

    def note(_: ServerConnection, request: Request) -> None:
        asked.append(request.headers)

    with scripted_socket(serve_short, process_request=note) as port:

        def redirect(_: ServerConnection, __: Request) -> Response:
            there = f"ws://localhost:{port}/ws/synthesize"
            return Response(status, "Elsewhere", Headers({"Location": there}), b"")

        with (
            scripted_socket(serve_short, process_request=redirect) as near,
            Client(f"http://127.0.0.1:{near}", retry=NEVER, api_key="sesame") as client,
        ):
            with pytest.raises(UnexpectedAnswer, match=f"redirects to ws://localhost:{port}"):
                client.stream("Hello.").read()
    assert asked == []


def test_no_redirect_of_a_request_is_followed() -> None:
    with scripted() as (far, asked):
        answer = (307, {"location": far}, b"")
        with scripted(answer, answer) as (url, _), Client(url, retry=NEVER) as client:
            for ask in (client.voices, lambda: client.synthesize("Hello.")):
                with pytest.raises(UnexpectedAnswer, match="redirects to"):
                    ask()
    assert asked == []


# ---- proxies ---------------------------------------------------------------------


@pytest.mark.parametrize("proxy", ["foo://me:secret@x", "socks5://me:secret@127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the packages that SOCKS needs, as the client is installed."""
    monkeypatch.setenv("http_proxy", proxy)
    for package in ("socksio", "python_socks", "python_socks.async_.asyncio"):
        monkeypatch.setitem(sys.modules, package, None)
    with Client("http://somewhere.invalid", retry=NEVER) as client:
        for ask in (client.health, client.stream("Hello.").read):
            with pytest.raises(KazeiaError, match="proxy") as caught:
                ask()
            assert "secret" not in str(caught.value)


# ---- what is no address ------------------------------------------------------------


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "a" * 64 + ".example.org", "."])
def test_a_host_that_no_name_server_knows(host: str) -> None:
    with pytest.raises(UsageError, match="labels of 1 to 63"):
        Client(f"http://{host}:8080")


@pytest.mark.parametrize("url", [7, b"http://127.0.0.1", ["http://127.0.0.1"], Path("/")])
def test_an_address_that_is_no_text(url: object) -> None:
    with pytest.raises(UsageError, match="is no address: expected http://HOST:PORT"):
        Client(url)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@",
        "http://me:secret@host/?a=b",
        "http://me:secret@host:port",
        "http://me:secret/more@host",
        "ftp://me:secret@host",
        "me:secret@host",
        "http://me:secret@a..b",
    ],
)
def test_a_password_is_not_shown_by_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="is no address") as caught:
        Client(url)
    assert "secret" not in str(caught.value)


def test_a_scheme_is_read_in_any_case() -> None:
    for url, expected in (
        ("HTTPS://Host/a/", "wss://Host/a/ws/synthesize"),
        ("HtTp://host:1", "ws://host:1/ws/synthesize"),
        ("https://host", "wss://host/ws/synthesize"),
    ):
        assert Address.of(url, None).ws_url == expected


def test_what_httpx_makes_of_a_host() -> None:
    address = Address.of("http://127.0.0.1", None)
    with pytest.raises(ConnectionFailed) as caught, http_errors(address):
        raise UnicodeError("label too long")
    assert not caught.value.transient
    with pytest.raises(UsageError), http_errors(address):
        raise httpx.InvalidURL("no")


# ---- many at once ------------------------------------------------------------------


def test_more_requests_than_a_pool_usually_has() -> None:
    """120 requests that are all answered only once the last of them has come."""
    n = 120
    everybody = threading.Barrier(n)
    answer = (
        b"HTTP/1.1 503 Busy\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    )

    def serve_one(connection: socket.socket) -> None:
        with connection:
            connection.recv(1 << 16)
            everybody.wait(60)
            connection.sendall(answer)

    def accept(listening: socket.socket) -> None:
        for _ in range(n):
            threading.Thread(target=serve_one, args=(listening.accept()[0],)).start()

    async def ask(port: int) -> list[BaseException | object]:
        async with AsyncClient(f"http://127.0.0.1:{port}", retry=NEVER, timeout_s=30) as client:
            asking = [client.synthesize("Hello.") for _ in range(n)]
            return list(await asyncio.gather(*asking, return_exceptions=True))

    with socket.create_server(("127.0.0.1", 0), backlog=n) as listening:
        accepting = threading.Thread(target=accept, args=(listening,))
        accepting.start()
        results = asyncio.run(ask(listening.getsockname()[1]))
        accepting.join(5)
    assert {type(result).__name__ for result in results} == {"Unavailable"}
