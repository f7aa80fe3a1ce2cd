"""The OpenAPI description against the running server, on generated requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fake_voice import FakeVoice
from fastapi import FastAPI
from hypothesis import HealthCheck, given, seed, settings
from live import Live, serving
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from kazeia_server.app import create_app
from kazeia_server.settings import Settings

KEY = "a-key-of-the-test"
PATHS = create_app(Settings()).openapi()["paths"]
# What a request must be beyond its schema (visible text, a voice there is) is told by a 400.
UNTOLD = [positive_data_acceptance]


def cases() -> list[Any]:
    """(path, method, mode); what takes no input cannot be asked wrongly."""
    found = []
    for path, item in PATHS.items():
        for method, operation in item.items():
            for mode in GenerationMode:
                takes_input = "requestBody" in operation or operation.get("parameters")
                if mode is GenerationMode.POSITIVE or takes_input:
                    name = f"{method} {path} {mode.value}"
                    found.append(pytest.param(path, method, mode, id=name))
    return found


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(FakeVoice(n_chunks=2), api_keys=(KEY,), max_text_chars=500) as live:
        yield live


def check(url: str, path: str, method: str, mode: GenerationMode, examples: int = 25) -> None:
    """Ask generated questions; raises FailureGroup if an answer is not as described."""
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path][method]

    @seed(1)
    @settings(
        max_examples=examples, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        headers = {"Authorization": f"Bearer {KEY}"}
        case.call_and_validate(headers=headers, timeout=30, excluded_checks=UNTOLD)

    ask()


@pytest.mark.parametrize(("path", "method", "mode"), cases())
def test_answers_are_as_described(live: Live, path: str, method: str, mode: GenerationMode) -> None:
    check(live.url, path, method, mode)
    assert live.service.running == 0


def test_every_door_is_described() -> None:
    expected = {"/synthesize", "/v1/audio/speech", "/v1/voices", "/health", "/readyz", "/metrics"}
    assert expected <= set(PATHS)


def test_a_failure_is_noticed() -> None:
    voice = FakeVoice()
    with serving(voice, api_keys=(KEY,)) as live:
        voice.fail_open = RuntimeError("broken")
        with pytest.raises(FailureGroup, match="Server error"):
            check(live.url, "/v1/audio/speech", "post", GenerationMode.POSITIVE)


def test_an_untrue_description_is_noticed() -> None:
    with serving(FakeVoice(), api_keys=(KEY,)) as live:
        app = live.server.config.app
        assert isinstance(app, FastAPI)
        answer = app.openapi()["paths"]["/health"]["get"]["responses"]["200"]
        answer["content"] = {"text/plain": answer["content"].pop("application/json")}
        with pytest.raises(FailureGroup, match="Undocumented Content-Type"):
            check(live.url, "/health", "get", GenerationMode.POSITIVE)
