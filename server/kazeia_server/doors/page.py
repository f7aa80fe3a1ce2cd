"""The web page: `/`, the files it is made of under `/web/`, and `/kazeia.js` for other sites.

The page speaks through the module of clients/web, whose files are under `/web/kazeia/`.  Pages of
other sites import it from `/kazeia.js`, if CORS lets them.

The files are read once, when this module is imported.  They name each other relatively, so that
they work under any path prefix.  None of them needs a key: the page is where a key is entered, and
it holds no secret.  They are left out of the OpenAPI description, being no part of the interface
for programs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

__all__ = ["module_folder", "router"]

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX = "index.html"

# The page needs its own scripts, styles and icon, and its own server to talk to; nothing else.
_SECURITY_HEADERS = {
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class _Asset:
    body: bytes
    media_type: str
    etag: str


def _asset(body: bytes, media_type: str) -> _Asset:
    return _Asset(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def module_folder() -> Path:
    """Where the files of clients/web are: the build puts them into the package."""
    installed = _WEB / "kazeia"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "clients/web/kazeia"


def _load(folder: Path) -> dict[str, _Asset]:
    """File name -> content, of the files whose type the page uses."""
    assets = {}
    for path in sorted(folder.iterdir()):
        media_type = _MEDIA_TYPES.get(path.suffix)
        if media_type is not None:
            assets[path.name] = _asset(path.read_bytes(), media_type)
    return assets


_WEB: Final = Path(__file__).parents[1] / "web"
_ASSETS: Final[Mapping[str, _Asset]] = _load(_WEB)
_MODULE: Final[Mapping[str, _Asset]] = _load(module_folder())
# Relative, so that it works under any prefix.
_ENTRY: Final = _asset(b'export * from "./web/kazeia/kazeia.js";\n', _MEDIA_TYPES[".js"])

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page(request: Request) -> Response:
    """The page."""
    return _answer(request, _ASSETS[_INDEX])


@router.get("/kazeia.js")
async def module(request: Request) -> Response:
    """The module of clients/web, at an address that does not change."""
    return _answer(request, _ENTRY)


@router.get("/web/kazeia/{name}")
async def module_file(request: Request, name: str) -> Response:
    """A file of the module."""
    return _named(request, _MODULE, name)


@router.get("/web/{name}")
async def page_file(request: Request, name: str) -> Response:
    """A script, a style sheet or a picture of the page."""
    if name == _INDEX:  # from here it would name its files wrongly
        raise HTTPException(404)
    return _named(request, _ASSETS, name)


def _named(request: Request, assets: Mapping[str, _Asset], name: str) -> Response:
    asset = assets.get(name)
    if asset is None:
        raise HTTPException(404)
    return _answer(request, asset)


def _answer(request: Request, asset: _Asset) -> Response:
    # no-cache: kept, but asked about each time, so that the page and its server match.
    headers = {**_SECURITY_HEADERS, "cache-control": "no-cache", "etag": asset.etag}
    if _matches(request.headers.get("if-none-match", ""), asset.etag):
        return Response(status_code=304, headers=headers)
    return Response(asset.body, headers=headers, media_type=asset.media_type)


def _matches(condition: str, etag: str) -> bool:
    """Whether an If-None-Match header (RFC 9110, 13.1.2) names `etag`."""
    named = [part.strip().removeprefix("W/") for part in condition.split(",")]
    return "*" in named or etag in named
