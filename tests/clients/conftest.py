from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_voice import FakeVoice
from live import Live, serving


@pytest.fixture(autouse=True)
def _no_address_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAZEIA_URL", raising=False)
    monkeypatch.delenv("KAZEIA_API_KEY", raising=False)


@pytest.fixture
def voice() -> FakeVoice:
    return FakeVoice(n_chunks=3)


@pytest.fixture
def live(voice: FakeVoice) -> Iterator[Live]:
    with serving(voice) as live:
        yield live
