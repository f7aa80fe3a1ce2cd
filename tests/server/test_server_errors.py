from __future__ import annotations

import pytest

from kazeia_server import errors
from kazeia_server.errors import ServerError, error_body, face_of


def all_errors() -> list[type[ServerError]]:
    """Those of the module itself: a door may have others, which only it meets."""
    found = (c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, ServerError))
    return [cls for cls in found if cls.__module__ == errors.__name__]


@pytest.mark.parametrize("cls", all_errors())
def test_every_error_has_a_face_and_is_exported(cls: type[ServerError]) -> None:
    face = face_of(cls("what was expected"))
    assert 400 <= face.status <= 599
    assert cls.__name__ in errors.__all__
    assert set(error_body(cls("x"))["error"]) == {"message", "type", "param", "code"}


def test_status_says_whose_fault_it_is() -> None:
    assert face_of(errors.UnknownVoice("x")).status == 400
    assert face_of(errors.PayloadTooLarge("x")).status == 413
    assert face_of(errors.Busy("x")).status == 503
    assert face_of(errors.EngineFailure("x")).status == 500


def test_planned_errors_show_their_message_and_field() -> None:
    body = error_body(errors.UnknownVoice("no such voice", param="voice"))
    assert body["error"]["message"] == "no such voice"
    assert body["error"]["param"] == "voice"
    assert body["error"]["code"] == "unknown_voice"


def test_unplanned_errors_keep_their_details() -> None:
    body = error_body(KeyError("/secret/path"))
    assert body["error"]["code"] == "internal_error"
    assert "secret" not in str(body)
