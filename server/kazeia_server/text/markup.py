"""Constructs of HTML, SSML, Markdown and addresses, recognised within bounds.

Every function here decides with bounded looks (`Lookahead`) and changes nothing.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Literal

from kazeia_server.text.characters import SINGLE
from kazeia_server.text.lookahead import Lookahead

__all__ = [
    "BLOCK_TAGS",
    "CELL_TAGS",
    "LINE_TAGS",
    "STREAMED",
    "Link",
    "Tag",
    "Url",
    "read_entity",
    "read_link",
    "read_tag",
    "read_url",
]

STREAMED = -1  # the construct ends somewhere beyond the bound

_MAX_TAG = 512
_MAX_NAME = 20
_MAX_ENTITY = 33
_MAX_LINK_TEXT = 300
_MAX_BRACKETS = 12
_MAX_DEPTH = 4
_MAX_DESTINATION = 512
_MAX_HOST = 254


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BLOCK_TAGS = _words(
    "p div h1 h2 h3 h4 h5 h6 ul ol dl table thead tbody tfoot blockquote section article header"
    " footer main nav aside pre figure form fieldset hr body html head title address details"
    " paragraph"
)
LINE_TAGS = _words("li tr dt dd caption figcaption summary option legend break sentence")
CELL_TAGS = _words("td th")
_RAW_TAGS = _words("script style svg template")
_INLINE_TAGS = _words(
    "a abbr acronym audio b bdi bdo big br button canvas center cite code col colgroup data"
    " datalist del dfn dialog em embed font hgroup i iframe img input ins kbd label link map area"
    " mark menu meta meter noscript object optgroup output param picture progress q rp rt ruby s"
    " samp select slot small source span strike strong sub sup textarea time track tt u var video"
    " wbr base speak say-as phoneme prosody emphasis voice lang lexicon desc w token"
    " mstts:express-as"
)
_TAGS = BLOCK_TAGS | LINE_TAGS | CELL_TAGS | _RAW_TAGS | _INLINE_TAGS
_NAME_END = re.compile(r"[^A-Za-z0-9:\-]")
_TAG_END = re.compile("[<>]")
_GREATER = re.compile(">")
_ATTRIBUTES = re.compile(
    r"""(?:\s+(?:[\w:.-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'=<>`]+)
        |(?:hidden|disabled|checked|selected|open|async|defer|controls|autoplay|loop|muted
           |reversed|required|readonly|multiple|novalidate|allowfullscreen|itemscope|scope)\b))*
        \s*/?\s*""",
    re.VERBOSE,
)
_ONE_ATTRIBUTE = re.compile(r"\s+[\w:.-]+\s*=\s*[\"'\w]")
_ENTITY_END = re.compile(r"[^A-Za-z0-9#]")
_AUTOLINK_END = re.compile(r"[\s<>]")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")

_BRACKETS = re.compile(r"[\[\]\\\n\r]")
_DESTINATION = re.compile(r"[\s()]")
_ANGLE_END = re.compile(r"[>\n\r]")
_QUOTES = {'"': re.compile(r'["\n\r]'), "'": re.compile(r"['\n\r]"), "(": re.compile(r"[)\n\r]")}

_SCHEMES = ("https://", "http://", "www.", "ftp://", "ftps://", "file://", "wss://", "ws://")
_HOST_END = re.compile(rf"[^\w.\-]|[{SINGLE}\u3000-\u30ff\uac00-\ud7af\uff00-\uffef]")
_USER_END = re.compile(r"[\s@/]")


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag or comment.  `end` is the index behind it, or STREAMED."""

    kind: Literal["tag", "raw", "comment", "address"]
    name: str  # in lower case; of an address its text
    closing: bool
    end: int


@dataclass(frozen=True, slots=True)
class Link:
    """A Markdown link or image whose text is [start, stop); `end` as in Tag.

    Behind STREAMED the destination begins at stop + 2.
    """

    start: int
    stop: int
    end: int


@dataclass(frozen=True, slots=True)
class Url:
    """A web address: its host without "www."; `end` is the index behind the host."""

    host: str
    end: int
    has_tail: bool  # a port, path, query or fragment follows


def read_tag(text: Lookahead, index: int) -> Tag | None:
    """What the "<" at `index` begins; None if it is just a sign."""
    start = index + 1
    first = text.at(start)
    if first == "!" and text.at(start + 1) == "-" and text.at(start + 2) == "-":
        return Tag("comment", "", False, start + 3)
    if first == "?" or (first == "!" and (text.at(start + 1) + "-")[0].isalpha()):
        end = text.find(_GREATER, start, _MAX_TAG)
        return Tag("tag", "", False, end + 1) if end >= 0 and text.at(end) else None
    closing = first == "/"
    start += closing
    if not (text.at(start).isascii() and text.at(start).isalpha()):
        return None
    stop = text.find(_NAME_END, start, _MAX_NAME)
    if stop < 0:
        return None
    following = text.at(stop)
    name = text.text[start:stop].lower()
    if following in ("@", ".", "+", "_") or (following == "/" and name.endswith(":")):
        return _read_autolink(text, start)
    if name not in _TAGS or not (following in ("/", ">") or following.isspace()):
        return None
    kind: Literal["raw", "tag"] = "raw" if name in _RAW_TAGS and not closing else "tag"
    end = text.find(_TAG_END, stop, _MAX_TAG)
    if end < 0:
        long = _ONE_ATTRIBUTE.match(text.text, stop, stop + _MAX_TAG)
        return Tag(kind, name, closing, STREAMED) if long else None
    if text.at(end) != ">" or not _ATTRIBUTES.fullmatch(text.text, stop, end):
        return None
    if kind == "raw" and text.text[end - 1] == "/":
        kind = "tag"
    return Tag(kind, name, closing, end + 1)


def _read_autolink(text: Lookahead, start: int) -> Tag | None:
    end = text.find(_AUTOLINK_END, start, _MAX_TAG)
    if end < 0 or text.at(end) != ">":
        return None
    address = text.text[start:end].removeprefix("mailto:")
    if _EMAIL.fullmatch(address):
        return Tag("address", address, False, end + 1)
    url = read_url(Lookahead(address, final=True), 0)
    return Tag("address", url.host, False, end + 1) if url and url.host else None


def read_entity(text: Lookahead, index: int) -> tuple[str, int] | None:
    """The character(s) that the entity at `index` stands for, and the index behind it."""
    first = text.at(index + 1)
    if not (first == "#" or (first.isascii() and first.isalpha())):
        return None
    end = text.find(_ENTITY_END, index + 1, _MAX_ENTITY)
    if end < 0 or text.at(end) != ";":
        return None
    entity = text.text[index : end + 1]
    if len(entity) > 12 and entity[1] == "#":
        return None
    meaning = html.unescape(entity)
    return None if meaning == entity else (meaning, end + 1)


def read_link(text: Lookahead, index: int) -> Link | None:
    """The link whose "[" stands at `index`: [text](url "title"), [text][label] or [^note]."""
    stop = _closing_bracket(text, index)
    if stop < 0:
        return None
    following = text.at(stop + 1)
    if following == "(":
        end = _destination_end(text, stop + 2)
        return None if end is None else Link(index + 1, stop, end)
    if text.at(index + 1) == "^":
        return Link(stop, stop, stop + 1)
    if following == "[":
        end = text.find(_BRACKETS, stop + 2, 100)
        if end >= 0 and text.at(end) == "]":
            return Link(index + 1, stop, end + 1)
    return None


def _closing_bracket(text: Lookahead, index: int) -> int:
    """Where the bracket opened at `index` is closed, on the same line; -1 if it is not."""
    position, depth, bound = index + 1, 1, index + _MAX_LINK_TEXT
    for _ in range(_MAX_BRACKETS):
        if position >= bound:
            return -1
        position = text.find(_BRACKETS, position, bound - position)
        char = text.at(position) if position >= 0 else ""
        if char == "\\":
            position += 2
            continue
        if char not in ("[", "]"):
            return -1
        depth += 1 if char == "[" else -1
        if depth == 0:
            return position
        if depth > _MAX_DEPTH:
            return -1
        position += 1
    return -1


def _destination_end(text: Lookahead, start: int) -> int | None:
    """The index behind the ")" of a destination that begins at `start`, STREAMED, or None."""
    position, depth, bound = start, 0, start + _MAX_DESTINATION
    if text.at(position) == "<":
        position = text.find(_ANGLE_END, position, _MAX_DESTINATION)
        if position < 0 or text.at(position) != ">":
            return None
        position += 1
    while True:
        found = text.find(_DESTINATION, position, max(bound - position, 0))
        if found < 0:
            return STREAMED
        char = text.at(found)
        if char == "":
            return None
        if char == ")" and depth == 0:
            return found + 1
        if char.isspace():
            return None if depth else _title_end(text, found)
        depth += 1 if char == "(" else -1
        position = found + 1


def _title_end(text: Lookahead, position: int) -> int | None:
    """The index behind `"title")`, or behind just ")"."""
    position = _skip_blanks(text, position)
    quote = _QUOTES.get(text.at(position))
    if quote is not None:
        position = text.find(quote, position + 1, _MAX_LINK_TEXT)
        if position < 0 or text.at(position) in ("", "\n", "\r"):
            return None
        position = _skip_blanks(text, position + 1)
    return position + 1 if text.at(position) == ")" else None


def _skip_blanks(text: Lookahead, position: int) -> int:
    stop = position + _MAX_DEPTH
    while position < stop and text.at(position) in (" ", "\t"):
        position += 1
    return position


def read_url(text: Lookahead, index: int) -> Url | None:
    """The web address that begins at `index`, which must be the start of a word."""
    if text.starts(index, "mailto:"):
        return Url("", index + 7, False)
    for scheme in _SCHEMES:
        if text.starts(index, scheme):
            break
    else:
        return None
    start = index + len(scheme)
    if scheme == "www." and not text.at(start).isalnum():
        return None
    end = text.find(_HOST_END, start, _MAX_HOST)
    if end >= 0 and text.at(end) in ("@", ":"):
        at_sign = text.find(_USER_END, end, 64)  # user:password@host
        if at_sign >= 0 and text.at(at_sign) == "@":
            start = at_sign + 1
            end = text.find(_HOST_END, start, _MAX_HOST)
    if end < 0:
        return Url("", start, False)
    following = text.at(end)
    if following == ":" and not text.at(end + 1).isdigit():
        following = ""
    host = text.text[start:end]
    has_tail = host != "" and following != "" and following in "/:?#"
    if not has_tail:
        host = host.rstrip(".-_")
    spoken = host[4:] if host[:4].lower() == "www." and len(host) > 4 else host
    return Url(spoken, start + len(host), has_tail)
