"""The ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from kazeia_server import __version__
from kazeia_server.backend import SynthesisBackend
from kazeia_server.errors import ServerError, error_body
from kazeia_server.limits import BodyLimit
from kazeia_server.logging_ import logger
from kazeia_server.routes import error_response, router
from kazeia_server.service import SynthesisService, load_voice
from kazeia_server.settings import Settings, load_settings

__all__ = ["create_app"]


def create_app(
    settings: Settings | None = None,
    *,
    load: Callable[[Settings], SynthesisBackend] = load_voice,
) -> FastAPI:
    """The application; the voice is loaded in a thread once the server has started.

    `load` makes the voice (blocking).  The service is at `app.state.service`.
    """
    settings = settings or load_settings()
    service = SynthesisService(settings, load)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.close()

    app = FastAPI(
        title="Kazeia",
        summary="Streaming text-to-speech",
        version=__version__,
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(router)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_exception_handler(ServerError, _on_server_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_bug)
    return app


async def _on_server_error(_: Request, error: Exception) -> Response:
    response = error_response(error)
    if response.status_code == 500:
        logger.error("request failed: %s", error, exc_info=error)
    return response


async def _on_validation_error(_: Request, error: Exception) -> Response:
    """What FastAPI itself refuses (it says 422) in the shape of every other bad request."""
    problems: list[dict[str, Any]] = []
    if isinstance(error, RequestValidationError):
        problems = list(error.errors())[:5]
    message = "; ".join(
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems
    )
    param = str(problems[0]["loc"][-1]) if problems and problems[0]["loc"] else None
    return _plain(400, message or "the request cannot be used", "invalid_request", param)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    if error.status_code == 404:
        message = f"there is nothing at {ascii(request.url.path)[:120]}"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{request.method} is not served here: expected {allowed}"
    return _plain(error.status_code, message, code, headers=dict(error.headers or {}))


async def _on_bug(_: Request, error: Exception) -> Response:
    return JSONResponse(error_body(error), 500)


def _plain(
    status: int,
    message: str,
    code: str,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(body, status, headers=headers)
