from __future__ import annotations

import pytest

from kazeia_server.settings import Settings


@pytest.fixture
def settings() -> Settings:
    return Settings()
