"""The Kazeia server: speech over HTTP and WebSocket, and the `kazeia` command."""

from __future__ import annotations

__all__ = ["__version__"]

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("kazeia")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
