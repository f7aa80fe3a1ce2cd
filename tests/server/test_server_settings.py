from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from kazeia_server.errors import InvalidRequest
from kazeia_server.settings import Settings, load_settings, unknown_variables


def test_defaults_listen_on_loopback_only() -> None:
    settings = load_settings()
    assert (settings.host, settings.port, settings.model) == ("127.0.0.1", 8080, None)


def test_environment_then_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KZTTS_PORT", "9000")
    monkeypatch.setenv("KZTTS_MODEL", "some/folder")
    monkeypatch.setenv("KZTTS_STREAM_CHUNK", "4")
    monkeypatch.setenv("KZTTS_CP_CACHE", "0")
    settings = load_settings(port=None, host=None)
    assert settings.port == 9000
    assert settings.model == Path("some/folder")
    assert settings.stream_chunk == 4
    assert settings.cp_cache is False
    assert load_settings(port=9001).port == 9001


@pytest.mark.parametrize("value", ["auto", "0", "12"])
def test_stream_chunk_forms(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("KZTTS_STREAM_CHUNK", value)
    assert str(load_settings().stream_chunk) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "eighty"),
        ("PORT", "65536"),
        ("TEMP", "nan"),
        ("TEMP", "-1"),
        ("TOPP", "0"),
        ("CP_REPP", "1.2"),
        ("MAX_CONCURRENT", "0"),
        ("STREAM_CHUNK", "sometimes"),
        ("STREAM_CHUNK", "-2"),
        ("LOG_LEVEL", "loud"),
    ],
)
def test_bad_values_name_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"KZTTS_{name}", value)
    with pytest.raises(InvalidRequest, match=f"KZTTS_{name}: .*{value}"):
        load_settings()


def test_an_empty_variable_means_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KZTTS_MODEL", "")
    assert load_settings().model is None


def test_settings_never_change() -> None:
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1  # type: ignore[misc]


def test_unknown_flags_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="--ports: "):
        load_settings(ports=1)


def test_unknown_variables_get_a_hint() -> None:
    environ = {"KZTTS_TOPKK": "1", "KZTTS_TOPK": "1", "PATH": "x", "KZTTS_QUITE_ELSE": ""}
    warnings = unknown_variables(environ)
    assert len(warnings) == 2
    assert "KZTTS_QUITE_ELSE" in warnings[0]
    assert "did you mean KZTTS_TOPK?" in warnings[1]
