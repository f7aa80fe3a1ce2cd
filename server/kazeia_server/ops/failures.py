"""How failures become answers: every error body has the shape `{"error": {...}}`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kazeia_server.errors import ServerError, Unavailable, error_body, face_of
from kazeia_server.logging_ import logger

__all__ = [
    "CatchFailures",
    "answer_failures",
    "error_docs",
    "error_response",
    "problem_response",
]

_CODES = {404: "not_found", 405: "method_not_allowed", 408: "request_timeout"}


_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def error_docs(**meanings: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries of error answers: `error_docs(s400="...", s503="...")`."""
    content = {"application/json": {"schema": _ERROR_SCHEMA}}
    return {
        int(status.removeprefix("s")): {"description": meaning, "content": content}
        for status, meaning in meanings.items()
    }


def error_response(error: Exception) -> JSONResponse:
    """The JSON answer for an error; says when to come back, and whether that can help."""
    headers = {}
    status = face_of(error).status
    if isinstance(error, Unavailable):
        headers["retry-after"] = str(error.retry_after_s)
    elif status >= 500:
        headers["x-should-retry"] = "false"  # the same text would fail again, at the same cost
    return JSONResponse(error_body(error), status, headers=headers)


def problem_response(
    status: int,
    message: str,
    code: str,
    *,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """The answer for what is refused before a route is reached."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(body, status, headers=headers)


def answer_failures(app: FastAPI) -> None:
    """Give `app` the handlers for what its routes raise."""
    app.add_exception_handler(ServerError, _on_server_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)


class CatchFailures:
    """ASGI middleware that answers a bug with a 500.

    It stands inside the others, so that this answer, too, gets a request id and CORS headers;
    Starlette's own handler stands outside of them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watching(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watching)
        except Exception as error:
            logger.error("request failed: %s", error, exc_info=error)
            if started:
                raise  # the connection is closed: the client sees that the answer is incomplete
            await error_response(error)(scope, receive, send)


async def _on_server_error(_: Request, error: Exception) -> Response:
    response = error_response(error)
    if response.status_code == 500:
        logger.error("request failed: %s", error, exc_info=error)
    return response


async def _on_disconnect(_: Request, error: Exception) -> Response:
    """The client left while it was sending its request: nobody reads this."""
    return Response(status_code=499)


async def _on_validation_error(_: Request, error: Exception) -> Response:
    """What FastAPI itself refuses (it says 422) in the shape of every other bad request."""
    problems: list[dict[str, Any]] = []
    if isinstance(error, RequestValidationError):
        problems = list(error.errors())[:5]
    message = "; ".join(
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems
    )
    param = str(problems[0]["loc"][-1]) if problems and problems[0]["loc"] else None
    message = message or "the request cannot be used"
    return problem_response(400, message, "invalid_request", param=param)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    headers = dict(error.headers or {})
    if error.status_code == 404:
        message = f"there is nothing at {ascii(request.url.path)[:120]}"
    elif error.status_code == 405:
        if headers.get("Allow") == "GET":
            headers["Allow"] = "GET, HEAD"  # by HeadAsGet
        allowed = headers.get("Allow", "another method")
        message = f"{request.method} is not served here: expected {allowed}"
    code = _CODES.get(error.status_code, "http_error")
    return problem_response(error.status_code, message, code, headers=headers)
