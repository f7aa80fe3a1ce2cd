"""Links between the documents lead somewhere, to headings as well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import ROOT, anchors_of, documents, links_of, name_of


def broken(document: Path, text: str) -> list[str]:
    """Links of a document's text that lead nowhere in the tree."""
    found = []
    for link in links_of(text):
        if re.match(r"[a-z]+:", link):  # another site
            continue
        target, _, anchor = link.partition("#")
        path = document.parent / target
        there = not target or path.exists()
        if there and anchor:
            there = anchor in anchors_of(path.read_text("utf-8") if target else text)
        if not there:
            found.append(link)
    return found


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    assert broken(document, document.read_text("utf-8")) == []


def test_a_broken_link_is_seen() -> None:
    here = ROOT / "sample.md"
    page = "# One\n\n[a](none.md) [b](README.md) ![c](x.svg) [d](README.md#no) [e](#2) [f](#one)"
    assert broken(here, page) == ["none.md", "README.md#no", "#2", "x.svg"]


def test_anchors_are_those_of_github() -> None:
    page = "# C++, and `code`\n\n## Same\n\n## Same\n\n    # no heading\n"
    assert anchors_of(page) == {"c-and-code", "same", "same-1"}


def test_every_document_is_reached_from_the_readme() -> None:
    reached, left = set[Path](), [ROOT / "README.md"]
    while left:
        document = left.pop()
        if document in reached:
            continue
        reached.add(document)
        targets = [link.partition("#")[0] for link in links_of(document.read_text("utf-8"))]
        paths = [(document.parent / t).resolve() for t in targets if not re.match(r"[a-z]+:", t)]
        left += [p for p in paths if p.suffix == ".md" and p.exists()]
        left += [f for p in paths if p.is_dir() and p != ROOT for f in p.rglob("*.md")]
    assert [name_of(d) for d in documents() if d.resolve() not in reached] == []
