"""Connections, and what can go wrong with them in this package's words."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    InvalidHandshake,
    InvalidMessage,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
)

from kazeia_client.address import Address
from kazeia_client.errors import (
    AnswerTimeout,
    ConnectionFailed,
    ConnectionLost,
    KazeiaError,
    UnexpectedAnswer,
    UsageError,
    error_of_answer,
)
from kazeia_client.version import __version__

__all__ = ["Link", "http_errors"]

_USER_AGENT = f"kazeia-client/{__version__}"
_CLOSE_S = 2.0
# The server's pings, and the answers to ours, queue behind audio that is on its way.
_PING_TIMEOUT_S = 60.0
_MAX_FRAME = 64 << 20  # bytes: a speech of 23 minutes that comes as one chunk
_FRAMES = 64  # that websockets collects before it lets the server wait


class _Connect(connect):
    """A connection to the address that was given, and to no other: the key is for it alone."""

    def process_redirect(self, exc: Exception) -> Exception:
        """Follow none."""
        return exc


@dataclass(slots=True)
class Link:
    """How the server is reached: seconds for connecting and short answers, TLS if it is special."""

    address: Address
    timeout_s: float
    ssl_context: ssl.SSLContext | None
    _usual: ssl.SSLContext | None = field(default=None, init=False)

    def _context(self) -> ssl.SSLContext:
        """Whose certificates count, for both kinds of connections.

        Raises UsageError where the environment names a file that cannot be read.
        """
        if self.ssl_context is not None:
            return self.ssl_context
        if self._usual is None:
            if not self.address.is_secure and self.address.is_loopback:
                # Nothing is encrypted on the way: one that trusts nobody is made in no time.
                self._usual = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            else:
                self._usual = _usual_context()
        return self._usual

    def http(self) -> httpx.AsyncClient:
        """For requests by path.

        Raises UsageError where the environment names no usable proxy or certificates.
        """
        context = self._context()
        try:
            return httpx.AsyncClient(
                base_url=self.address.url,
                headers={"user-agent": _USER_AGENT, **self.address.headers},
                timeout=self.timeout_s,
                limits=httpx.Limits(max_connections=None),
                verify=context,
                trust_env=not self.address.is_loopback,
            )
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            raise _no_proxy(error) from None

    async def websocket(self) -> ClientConnection:
        """A connection that the speech protocol can be spoken on.

        Raises KazeiaError.
        """
        where = self.address.shown
        try:
            return await _Connect(
                self.address.ws_url,
                additional_headers=self.address.headers,
                user_agent_header=_USER_AGENT,
                compression=None,
                open_timeout=self.timeout_s,
                close_timeout=_CLOSE_S,
                ping_timeout=_PING_TIMEOUT_S,
                max_size=_MAX_FRAME,
                max_queue=_FRAMES,
                proxy=None if self.address.is_loopback else True,
                ssl=self._context() if self.address.is_secure else None,
            )
        except InvalidStatus as error:
            answer = error.response
            headers = {name.lower(): value for name, value in answer.headers.raw_items()}
            raise error_of_answer(answer.status_code, headers, bytes(answer.body or b"")) from None
        except InvalidURI as error:
            raise UsageError(f"{where} is no address: {error.msg}") from None
        except (InvalidProxy, ImportError) as error:
            raise _no_proxy(error) from None
        except TimeoutError:
            raise ConnectionFailed(f"{where} did not answer within {self.timeout_s:g} s") from None
        except InvalidMessage as error:
            if isinstance(error.__cause__, EOFError):
                raise ConnectionLost(f"{where} closed the connection unanswered") from None
            raise UnexpectedAnswer(f"expected a WebSocket at {where}: {error}") from None
        except (OSError, InvalidHandshake, UnicodeError) as error:
            raise _unreachable(where, error) from error


@contextmanager
def http_errors(address: Address) -> Iterator[None]:
    """What httpx raises, as this package's errors."""
    where = address.shown
    try:
        yield
    except httpx.ConnectTimeout:
        raise ConnectionFailed(f"{where} did not answer in time") from None
    except httpx.TimeoutException:
        raise AnswerTimeout(f"{where} sent nothing for too long") from None
    except httpx.ProxyError as error:
        raise ConnectionFailed(f"the proxy to {where} failed: {error}", transient=False) from error
    except httpx.ConnectError as error:
        raise _unreachable(where, error) from error
    except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
        raise ConnectionLost(f"{where} broke off: {str(error) or type(error).__name__}") from error
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise UsageError(f"{where} is no address: {error}") from None
    except UnicodeError as error:  # of a host that no name server could be asked for
        raise _unreachable(where, error) from error
    except httpx.HTTPError as error:
        raise KazeiaError(f"{where}: {error}") from error


def _usual_context() -> ssl.SSLContext:
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
        named = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
        raise UsageError(
            f"the certificates cannot be read ({', '.join(named) or 'no file is named'}): {error}"
        ) from None


def _no_proxy(error: Exception) -> UsageError:
    """Of what HTTP_PROXY, HTTPS_PROXY or ALL_PROXY name; their values may hold passwords."""
    why = (
        "that kind needs a package that is not installed"
        if isinstance(error, ImportError)
        else "expected http://HOST:PORT"
    )
    return UsageError(f"the proxy that the environment names cannot be used: {why}")


def _unreachable(where: str, error: BaseException) -> KazeiaError:
    """Nothing can be reached; a name that does not exist or a certificate stay as they are."""
    lasting = (socket.gaierror, ssl.SSLError, UnicodeError)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, lasting):
        cause = cause.__cause__ or cause.__context__
    return ConnectionFailed(f"nothing answers at {where}: {error}", transient=cause is None)
