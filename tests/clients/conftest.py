from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_address_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAZEIA_URL", raising=False)
    monkeypatch.delenv("KAZEIA_API_KEY", raising=False)
