"""Whether the server lives, is ready, and what voices it has."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from kazeia_server import __version__
from kazeia_server.doors.http import service_of
from kazeia_server.ops.failures import error_docs

__all__ = ["router"]

router = APIRouter(tags=["status"])


@router.get("/health", summary="Whether the process lives; never touches the voice")
@router.get("/healthz", include_in_schema=False)
async def health(request: Request) -> dict[str, Any]:
    """Always 200 while the process answers."""
    service = service_of(request)
    answer: dict[str, Any] = {
        "status": "ok",
        "version": __version__,
        "state": service.state,
        "voice_source": service.source,
        "model": service.model,
        "running": service.running,
        "waiting": service.waiting,
    }
    if service.failure is not None:
        answer["failure"] = str(service.failure)
    return answer


@router.get(
    "/readyz",
    summary="Whether speech can be asked for now",
    responses=error_docs(s503="loading, failed to load, draining or shutting down"),
)
async def readyz(request: Request) -> dict[str, Any]:
    """200 once the voice is loaded and warm."""
    info = service_of(request).accepting()
    return {"status": "ready", "voice_source": info.source, "model": info.name}


@router.get(
    "/v1/voices",
    summary="The voices and languages there are",
    responses=error_docs(s503="no voice is loaded (yet)"),
)
async def voices(request: Request) -> dict[str, Any]:
    """Names for `voice` and `language`; the fields ElevenLabs clients read are among them."""
    info = service_of(request).info
    return {
        "voices": [
            {
                "id": name,
                "voice_id": name,
                "name": name,
                "category": info.source,
                "default": name == info.default_voice,
            }
            for name in info.voices
        ],
        "languages": ["auto", *info.languages],
        "voice_source": info.source,
        "model": info.name,
        "kind": info.kind,
        "sample_rate": info.sample_rate,
        "follows_instructions": info.follows_instructions,
    }
