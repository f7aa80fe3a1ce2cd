from __future__ import annotations

import os
import signal

import pytest

from kazeia_server.settings import PREFIX


def pytest_configure() -> None:
    """Where the tests are started with Ctrl-C ignored (in the background of a script, by some CI
    runners), the programs that they start and interrupt do not inherit that: a handler ends with
    `exec`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
