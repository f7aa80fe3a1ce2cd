from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

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


@contextmanager
def _locked(file: Path, how: int) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, how)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # processes of the test may have the file too


@pytest.hookimpl(wrapper=True, tryfirst=True)  # what is waited for here is not in the timeout
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """In a parallel run, a test marked `alone` runs while the other workers wait."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    folder: Path = item.config._tmp_path_factory.getbasetemp().parent  # type: ignore[attr-defined]
    alone = item.get_closest_marker("alone") is not None
    with ExitStack() as held:
        with _locked(folder / "door", fcntl.LOCK_EX):  # nobody overtakes who waits for the room
            how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
            held.enter_context(_locked(folder / "room", how))
        return (yield)
