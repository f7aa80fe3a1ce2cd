"""Open WebUI's own audio routes; runs in its environment.

    python open_webui_run.py < calls.json

Settings come from the environment, as they do for Open WebUI.  Reads a JSON list of
[method, path, body] under /api/v1/audio, calls them in order as a browser that has logged in does,
and prints a JSON list of [status, content type, body in base64].
"""

import asyncio
import base64
import json
import sys
from types import SimpleNamespace

import httpx
from fastapi import FastAPI
from open_webui.routers import audio
from open_webui.utils import session_pool
from open_webui.utils.auth import get_admin_user, get_verified_user


def application() -> FastAPI:
    app = FastAPI()
    app.include_router(audio.router, prefix="/api/v1/audio")
    for who in (get_verified_user, get_admin_user):
        app.dependency_overrides[who] = lambda: SimpleNamespace(
            id="1", role="admin", name="Test", email="test@example.org"
        )
    return app


async def main() -> None:
    answers = []
    transport = httpx.ASGITransport(application())
    async with httpx.AsyncClient(transport=transport, base_url="http://browser") as browser:
        for method, path, body in json.load(sys.stdin):
            answer = await browser.request(method, f"/api/v1/audio{path}", json=body)
            content = base64.b64encode(answer.content).decode()
            answers.append([answer.status_code, answer.headers.get("content-type"), content])
    await (await session_pool.get_session()).close()
    print(json.dumps(answers))


asyncio.run(main())
