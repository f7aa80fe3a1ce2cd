"""The OpenAPI description, and a page to try it out that needs no network."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, Response

from kazeia_server.ops.auth import is_public
from kazeia_server.ops.failures import error_docs
from kazeia_server.settings import Settings

__all__ = ["describe_operations", "router"]

router = APIRouter(include_in_schema=False)

_ASSETS = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")


@router.get("/docs")
async def docs() -> HTMLResponse:
    """Swagger UI.  Addresses are relative, so that the page works under any prefix."""
    return get_swagger_ui_html(
        title="Kazeia",
        openapi_url="openapi.json",
        swagger_js_url=f"docs/{_ASSETS[0]}",
        swagger_css_url=f"docs/{_ASSETS[1]}",
        swagger_favicon_url=f"docs/{_ASSETS[2]}",
    )


@router.get("/docs/{name}")
async def docs_file(name: str) -> Response:
    """The files of Swagger UI, as fastapi-offline brings them along."""
    if name not in _ASSETS:
        raise HTTPException(404)
    return FileResponse(str(files("fastapi_offline").joinpath("static", name)))


def describe_operations(app: FastAPI, settings: Settings) -> None:
    """Add to the OpenAPI description what the middleware answers in place of a route."""
    describe = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = describe()
            if settings.api_keys:
                schema.setdefault("components", {})["securitySchemes"] = {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "header": {"type": "apiKey", "in": "header", "name": "xi-api-key"},
                }
            for path, item in schema["paths"].items():
                for method, operation in item.items():
                    _describe(operation, method.upper(), path, settings)
            for name in ("HTTPValidationError", "ValidationError"):
                schema.get("components", {}).get("schemas", {}).pop(name, None)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _describe(operation: dict[str, Any], method: str, path: str, settings: Settings) -> None:
    responses = operation["responses"]
    errors: dict[str, str] = {}
    if "HTTPValidationError" in str(responses.get("422")):  # FastAPI's own: here it is a 400
        del responses["422"]
        errors["s400"] = "a parameter cannot be used"
    if settings.api_keys and not is_public(method, path):
        operation["security"] = [{"bearer": []}, {"header": []}]
        errors["s401"] = "no accepted API key"
    elif not settings.api_keys and method not in ("GET", "HEAD"):
        errors["s403"] = "asked by a page of another site"
    if "requestBody" in operation:
        errors["s408"] = "the body did not arrive in time"
        errors["s413"] = "the body is too large"
    for status, answer in error_docs(**errors).items():
        responses.setdefault(str(status), answer)
