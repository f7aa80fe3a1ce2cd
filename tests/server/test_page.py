from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_voice import FakeVoice
from live import serving

import kazeia_server
from kazeia_server.app import create_app
from kazeia_server.settings import Settings

WEB = Path(kazeia_server.__file__).parent / "web"
NAMES = sorted(path.name for path in WEB.iterdir())


def get(url: str, method: str = "GET", **headers: str) -> httpx.Response:
    with httpx.Client(trust_env=False) as client:
        return client.request(method, url, headers=headers, timeout=10)


def test_every_file_is_served_as_what_it_is() -> None:
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    with serving(FakeVoice()) as live:
        page = live.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.content == (WEB / "index.html").read_bytes()
        assert {"index.html", "app.js", "player.js", "worklet.js", "style.css"} <= set(NAMES)
        for name in NAMES:
            if name == "index.html":
                continue
            answer = live.get(f"/web/{name}")
            assert answer.status_code == 200, name
            assert answer.content == (WEB / name).read_bytes()
            assert answer.headers["content-type"].partition(";")[0] == types[Path(name).suffix]


@pytest.mark.parametrize("path", ["/", "/web/app.js"])
def test_headers(path: str) -> None:
    with serving(FakeVoice()) as live:
        answer = live.get(path)
        head = get(live.url + path, "HEAD")
    policy = dict(
        part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == str(len(answer.content))


def test_unchanged_files_are_not_sent_again() -> None:
    with serving(FakeVoice()) as live:
        tag = live.get("/").headers["etag"]
        assert live.get("/web/app.js").headers["etag"] != tag
        for condition in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            answer = get(live.url + "/", **{"if-none-match": condition})
            assert answer.status_code == 304, condition
            assert answer.content == b""
            assert answer.headers["etag"] == tag
        for condition in ('"other"', "", tag[:-2] + '"'):
            assert get(live.url + "/", **{"if-none-match": condition}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/web/",
        "/web/nothing.js",
        "/web/index.html",
        "/web/../settings.py",
        "/web/..%2fsettings.py",
        "/web/%2e%2e/settings.py",
        "/web/%2fetc%2fpasswd",
        "/web/app.js%00.html",
        "/web/app.js/",
    ],
)
def test_nothing_else_is_served(path: str) -> None:
    with serving(FakeVoice()) as live:
        answer = live.get(path)
    assert answer.status_code == 404 or answer.is_redirect
    assert b"import" not in answer.content


def test_other_methods_are_refused() -> None:
    with serving(FakeVoice()) as live:
        assert get(live.url + "/", "POST").status_code == 405


def test_the_page_needs_no_key() -> None:
    with serving(FakeVoice(), api_keys=("secret",)) as live:
        assert live.get("/").status_code == 200
        assert live.get("/web/app.js").status_code == 200
        assert live.get("/v1/voices").status_code == 401


def test_the_page_is_no_part_of_the_programs_interface() -> None:
    schema: dict[str, Any] = create_app(Settings()).openapi()
    assert not [path for path in schema["paths"] if path == "/" or path.startswith("/web")]


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    for name in NAMES:
        text = (WEB / name).read_text("utf-8")
        for url in re.findall(r"""(?:src|href|url\(|from|import)\s*[=(]?\s*["']([^"']+)""", text):
            assert not re.match(r"[a-z]+:|//|/", url), f"{name} names {url}"
            if name != "index.html":
                assert (WEB / url).is_file() or url.startswith("./"), f"{name} names {url}"
        assert not re.search(r"<script>|<style|\son[a-z]+=\"|\sstyle=\"", text), name
    page = (WEB / "index.html").read_text("utf-8")
    for url in re.findall(r'(?:src|href)="(web/[^"]+)"', page):
        assert (WEB.parent / url).is_file(), url
    for name in NAMES:
        for url in re.findall(r'from "\./([^"]+)"', (WEB / name).read_text("utf-8")):
            assert (WEB / url).is_file(), f"{name} imports {url}"
