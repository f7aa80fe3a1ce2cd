from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_voice import FakeVoice
from live import serving

import kazeia_server
from kazeia_server.app import create_app
from kazeia_server.doors.page import module_folder
from kazeia_server.settings import Settings

WEB = Path(kazeia_server.__file__).parent / "web"
NAMES = sorted(path.name for path in WEB.iterdir() if path.is_file())
MODULE = module_folder()
SOURCE = Path(__file__).parents[2] / "clients" / "web" / "kazeia"


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
        assert {"index.html", "app.js", "typing.js", "waveform.js", "style.css"} <= set(NAMES)
        for name in NAMES:
            if name == "index.html":
                continue
            answer = live.get(f"/web/{name}")
            assert answer.status_code == 200, name
            assert answer.content == (WEB / name).read_bytes()
            assert answer.headers["content-type"].partition(";")[0] == types[Path(name).suffix]


def test_the_module_is_that_of_clients_web() -> None:
    names = sorted(path.name for path in MODULE.iterdir())
    assert names == sorted(path.name for path in SOURCE.iterdir())
    assert {"kazeia.js", "kazeia.d.ts", "worklet.js"} <= set(names)
    with serving(FakeVoice()) as live:
        for name in names:
            assert (MODULE / name).read_bytes() == (SOURCE / name).read_bytes(), name
            answer = live.get(f"/web/kazeia/{name}")
            if name.endswith(".js"):
                assert answer.content == (SOURCE / name).read_bytes(), name
                assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
            else:
                assert answer.status_code == 404
        entry = live.get("/kazeia.js")
        assert entry.headers["content-type"] == "text/javascript; charset=utf-8"
        match = re.fullmatch(r'export \* from "\./([^"]+)";\n', entry.text)
        assert match is not None
        assert live.get(f"/{match[1]}").status_code == 200


@pytest.mark.parametrize("path", ["/kazeia.js", "/web/kazeia/worklet.js"])
def test_other_sites_may_load_the_module_where_cors_lets_them(path: str) -> None:
    origins = ("https://friend.test", "https://stranger.test")
    with serving(FakeVoice(), cors_origins=origins[:1]) as live:
        friend, stranger = (get(live.url + path, origin=origin) for origin in origins)
        assert friend.headers["access-control-allow-origin"] == origins[0]
        assert "access-control-allow-origin" not in stranger.headers
        assert "origin" in friend.headers["vary"].lower()
    with serving(FakeVoice(), cors_origins=("*",)) as live:
        answer = get(live.url + path, origin=origins[1])
        assert answer.headers["access-control-allow-origin"] == "*"
    with serving(FakeVoice()) as live:
        answer = get(live.url + path, origin=origins[1])
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ["/", "/web/app.js", "/kazeia.js", "/web/kazeia/kazeia.js"])
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
        "/web/kazeia/",
        "/web/kazeia/nothing.js",
        "/web/kazeia/..%2fapp.js",
        "/web/kazeia/kazeia.d.ts",
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
        assert live.get("/kazeia.js").status_code == 200
        assert live.get("/web/kazeia/worklet.js").status_code == 200
        assert live.get("/v1/voices").status_code == 401


def test_the_page_is_no_part_of_the_programs_interface() -> None:
    schema: dict[str, Any] = create_app(Settings()).openapi()
    assert not [p for p in schema["paths"] if p in ("/", "/kazeia.js") or p.startswith("/web")]


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    # URL below /web/ -> file
    files = {name: WEB / name for name in NAMES}
    files.update({f"kazeia/{path.name}": path for path in MODULE.glob("*.js")})
    links = r"""(?:src|href|url\(|from|import)\s*[=(]?\s*["']([^"'\s]+)["']"""
    imported = 0
    for name, path in files.items():
        text = path.read_text("utf-8")
        for url in re.findall(links, text):
            assert not re.match(r"[a-z]+:|//|/", url), f"{name} names {url}"
        assert not re.search(r"<script>|<style|\son[a-z]+=\"|\sstyle=\"", text), name
        for url in re.findall(r'from "\./([^"]+)"', text):
            assert posixpath.join(posixpath.dirname(name), url) in files, f"{name} imports {url}"
            imported += 1
    assert imported > 10
    for url in re.findall(r'(?:src|href)="web/([^"]+)"', files["index.html"].read_text("utf-8")):
        assert url in files, url
