"""The pages of clients/integrations as their readers use them: code blocks and tables of fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from live import Live

FOLDER = Path(__file__).parents[2] / "clients" / "integrations"
PAGES = tuple(sorted(page.stem for page in FOLDER.glob("*.md") if page.stem != "README"))
VOICES = ("vivian", "serena")  # that the pages speak with
_HTTP, _WYOMING = "127.0.0.1:8080", "127.0.0.1/10200"


def text_of(page: str) -> str:
    return (FOLDER / f"{page}.md").read_text("utf-8")


def blocks(page: str, *languages: str) -> list[str]:
    """The fenced code blocks in one of the languages, in order."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text_of(page), re.M | re.S)
    return [code for language, code in found if language in languages]


def block(page: str, language: str, *containing: str) -> str:
    """The one code block that contains all of the words."""
    found = [code for code in blocks(page, language) if all(word in code for word in containing)]
    assert len(found) == 1, f"{len(found)} blocks of {page}.md contain {containing}"
    return found[0]


def fields(page: str) -> list[dict[str, str]]:
    """The tables "field, value" of a page: field to the value in its first code span, or ""."""
    tables = re.findall(r"^\| field \| value \|\n\|[-|]+\|\n((?:\|.*\|\n)+)", text_of(page), re.M)
    assert tables, f"{page}.md has no table of fields"
    found = []
    for table in tables:
        rows = [re.split(r" ?\| ?", row.strip("|").strip()) for row in table.splitlines()]
        spans = {field: re.search(r"`([^`]+)`", value) for field, value in rows}
        found.append({field: span[1] if span else "" for field, span in spans.items()})
    return found


def here(code: str, live: Live, wyoming_port: int | None = None) -> str:
    """`code` with the addresses of the servers of a test."""
    code = code.replace(_HTTP, f"127.0.0.1:{live.port}")
    if wyoming_port is not None:
        code = code.replace(_WYOMING, f"127.0.0.1/{wyoming_port}")
        code = code.replace('"127.0.0.1", 10200', f'"127.0.0.1", {wyoming_port}')
    return code


def names_of(codes: Sequence[str], live: Live) -> SimpleNamespace:
    """What blocks of Python, run one after another, have defined."""
    names: dict[str, Any] = {"__name__": "page"}
    for code in codes:
        exec(compile(here(code, live), "page", "exec"), names)
    return SimpleNamespace(**names)
