"""Where the server is, and the key it is asked with."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from kazeia_client.errors import UsageError

__all__ = ["DEFAULT_URL", "KEY_VARIABLE", "URL_VARIABLE", "Address"]

DEFAULT_URL = "http://127.0.0.1:8080"
URL_VARIABLE = "KAZEIA_URL"
KEY_VARIABLE = "KAZEIA_API_KEY"


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address without a slash at its end, and the key, if one is needed."""

    url: str
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str | None, key: str | None) -> Address:
        """What is given, else what the environment says, else a server on this machine.

        Raises UsageError for what is no address, or no key.
        """
        url = url if url is not None else os.environ.get(URL_VARIABLE) or DEFAULT_URL
        key = key if key is not None else os.environ.get(KEY_VARIABLE) or None
        if key is not None and (not key.isascii() or not key.isprintable() or not key.strip()):
            raise UsageError("the API key cannot be sent: expected printable ASCII characters")
        scheme = _checked_scheme(url)
        url = scheme + url[len(scheme) :].rstrip("/")  # in lower case, whoever compares it
        return cls(url, key.strip() if key else None)

    @property
    def is_secure(self) -> bool:
        """Whether it is reached by TLS."""
        return urlsplit(self.url).scheme == "https"

    @property
    def ws_url(self) -> str:
        """Of the speech protocol."""
        _, _, rest = self.url.partition(":")
        return f"{'wss' if self.is_secure else 'ws'}:{rest}/ws/synthesize"

    @property
    def headers(self) -> dict[str, str]:
        """That carry the key; `Authorization` stays free where the URL has a user for a proxy."""
        if self.key is None:
            return {}
        if "@" in urlsplit(self.url).netloc:
            return {"x-api-key": self.key}
        return {"authorization": f"Bearer {self.key}"}

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine, which no proxy leads to."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost" or host.endswith(".localhost")

    @property
    def shown(self) -> str:
        """The URL without a password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _checked_scheme(url: object) -> str:
    """The scheme, in lower case, of what is an address.

    Raises UsageError.
    """
    if not isinstance(url, str):
        raise UsageError(f"a {type(url).__name__} is no address: expected http://HOST:PORT")
    shown = repr(_without_password(url))
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        why = "expected http://HOST:PORT" if "@" in url else error  # which may quote a password
        raise UsageError(f"{shown} is no address: {why}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"{shown} is no address: expected http://HOST:PORT or https://HOST")
    if parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise UsageError(f"{shown} is no address: expected nothing behind the path, and no spaces")
    try:
        host.encode("idna")
    except UnicodeError:
        raise UsageError(
            f"{shown} is no address: expected a host of labels of 1 to 63 characters"
        ) from None
    return parts.scheme


def _without_password(url: str) -> str:
    before, at, host = url.rpartition("@")
    scheme, slashes, _ = before.partition("//")
    return (scheme + slashes if slashes else "") + host if at else url
