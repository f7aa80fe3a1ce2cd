"""The documents of the tree: their code, their links and their headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
BUILT = {"build", "dist", "models", "node_modules"}  # hold what others wrote, as hidden folders do
SHELL = ("sh", "bash")


@dataclass(frozen=True)
class Block:
    """A block of code.

    language: as the fence says; an indented block is "sh".  file: the name behind the language,
    under which the block is saved for commands that follow.
    """

    document: str
    line: int
    language: str
    file: str
    text: str

    @property
    def place(self) -> str:
        """Where it begins, for messages."""
        return f"{self.document}:{self.line}"


def documents() -> list[Path]:
    """Every Markdown file of the tree."""
    found = []
    for path in ROOT.rglob("*.md"):
        parts = path.relative_to(ROOT).parts
        if not any(part in BUILT or part.startswith(".") for part in parts):
            found.append(path)
    return sorted(found)


def name_of(path: Path) -> str:
    """A document's path in the tree."""
    return str(path.relative_to(ROOT))


def blocks_of(name: str, text: str) -> list[Block]:
    """The blocks of code of a document, in order, those in lists and quotes as well."""
    found = []
    for token in _tokens(text):
        if token.type not in ("fence", "code_block"):
            continue
        assert token.map is not None
        language, _, file = token.info.strip().partition(" ")
        if token.type == "code_block":
            language = "sh"
        found.append(Block(name, token.map[0] + 1, language, file.strip(), token.content))
    return found


def links_of(text: str) -> list[str]:
    """Targets of links and pictures."""
    inline = [child for token in _tokens(text) for child in token.children or ()]
    targets = [str(t.attrs["href"]) for t in inline if t.type == "link_open"]
    return targets + [str(t.attrs["src"]) for t in inline if t.type == "image"]


def anchors_of(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    tokens, found = _tokens(text), list[str]()
    for token, after in pairwise(tokens):
        if token.type == "heading_open":
            plain = "".join(c.content for c in after.children or () if c.type != "image")
            slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            before = found.count(slug)
            found.append(slug)
            if before:
                found.append(f"{slug}-{before}")
    return set(found)


def _tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)
