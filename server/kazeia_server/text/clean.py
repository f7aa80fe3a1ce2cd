"""Making written text speakable: markup, addresses and decoration go, words stay as they are.

`Cleaner` takes text as it arrives and gives out what is decided.
Plain prose comes through unchanged apart from white space.  Numbers, units, abbreviations,
`snake_case`, `2*3*4`, `a < b`, `C#`, `#1`, `@name`, file paths and e-mail addresses stay too: the
model reads them.

    written                                spoken
    # Heading, Heading underlined with ===  a paragraph of its own
    **bold**, *italic*, ~~struck~~         the words
    `code`                                 the code, as it is
    fenced code block                      nothing; a paragraph ends there
    [text](url), [text][label], ![alt](u)  text, alt; nothing for a footnote mark [^1]
    - item, * item, • item, - [x] item     item, as a sentence of its own
    1. item, 2) item                       the same, if counted from 1; "3. Oktober" stays
    > quote                                quote
    | a | b |                              "a, b.", a sentence a row
    ---, ***, ===, +----+ on a line        nothing; a paragraph ends there
    https://www.example.com/a?b=c          example.com
    <b>, <span ...>, <speak>, comments     nothing; script, style and svg with all they hold
    <p>, <h1>, <li>, <tr>, <break/>        the sentence or paragraph ends
    &amp; &#8364;                          & €
    \\*                                     *
    emoji, flags, keycaps, pictures        nothing
    controls, zero-width, bidi, lone surrogates, private use: nothing; ZWJ and ZWNJ stay between
                                           letters of the scripts that need them
    !!!!!!, ......                         three of them; a run of four or more of * _ ~ = # - + | `
                                           nothing
    combining marks                        at most four on a character

Headings, items and rows get a full stop ("。" behind Chinese and Japanese) unless a mark ends
them.  A tag is one only if its name is known in HTML or SSML, so `List<String>` and `a <b` stay.

The output is what `Segmenter` expects: "\\n\\n" ends a paragraph, "\\n" is a line break of the
source or the end of an item or row; other white space is one space.

A construct is held back until it is complete, at most a few hundred characters; if it is not by
then, it is taken as it stands.  Plain words leave at once.  However the text is cut on its way in,
the output is the same.  Work is linear in the length of the text.  No text raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from kazeia_server.text.characters import (
    BREAKS,
    is_dropped,
    is_mark,
    is_speakable,
    is_wide,
)
from kazeia_server.text.drops import Drops
from kazeia_server.text.lookahead import Lookahead
from kazeia_server.text.markup import (
    BLOCK_TAGS,
    CELL_TAGS,
    LINE_TAGS,
    STREAMED,
    Tag,
    Url,
    read_entity,
    read_link,
    read_tag,
    read_url,
)
from kazeia_server.text.skips import (
    MAX_FENCE,
    MAX_INDENT,
    CommentSkip,
    DestinationSkip,
    FenceSkip,
    RawSkip,
    RunSkip,
    Skip,
    TagSkip,
    UrlSkip,
)
from kazeia_server.text.speech_writer import SpeechWriter

__all__ = ["Cleaner"]

_Block = Literal["text", "heading", "item", "row"]

# Letters and digits whose successor does not matter, except that a digit can begin a keycap emoji.
_NARROW = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u0373\u0386\u0388-\u03ff\u0400-\u0481"
    "\u048a-\u052f"
)
_WIDE = "\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
_WORD = re.compile(rf"(?:[{_NARROW}]|[0-9](?=[0-9{_NARROW}{_WIDE}]))+|[{_WIDE}]+")
_URL_STARTS = frozenset("hHwWfFmM")
_RUNS = frozenset("*_~=#-+|`")
_ESCAPED = frozenset("*_`#[]()~>|!{}+-.<&")
_OPENS = frozenset("([{\"'“‘„‚«‹「『（【《¿¡—–-/:;,.!?*_~`<>|")  # what emphasis can begin after
_BULLET_SIGNS = frozenset("•◦▪‣●○■□◆◇▶►➤✓✔✅☑・")
_ORNAMENTS = frozenset("-=*_+|:~ \t")
_MAX_ORNAMENT = 128
_MAX_INFO = 200
_INFO_END = re.compile(r"[`\n\r]")
_LETTER_END = re.compile(r"[^\w]|[\d_]")
_MONTHS = re.compile(
    "januar|februar|märz|april|mai|juni|juli|august|september|oktober|november|dezember", re.I
)
# Text characters that become emoji before U+FE0F.
_EMOJI_WITH_SELECTOR = frozenset("©®‼⁉™ℹ↔↕↖↗↘↙↩↪Ⓜ⤴⤵〰〽㊗㊙")
_JOINING_SCRIPTS = range(0x0590, 0x1AFF)


class Cleaner:
    """Incremental clean-up of one text; see the module for what it does.

    `drops` gets to know what is left out: characters, and markup by its kind.
    """

    def __init__(self, drops: Drops | None = None) -> None:
        self._drops = Drops() if drops is None else drops
        self._writer = SpeechWriter(self._drops)
        self._held = ""
        self._skip: Skip | None = None  # what is being skipped
        self._before = ""  # the character before, "" at the start of a line
        self._after_return = False
        # lines and blocks
        self._line_start = True
        self._indent = 0
        self._block: _Block = "text"
        self._breaks = 0  # line breaks not yet written; 2 for an empty line
        self._ruled = False  # a rule or fence stood since the last line
        self._numbers: dict[int, int] = {}  # last number of a list, by indentation
        # inline
        self._open = {"*": 0, "_": 0}  # emphasis marks open
        self._code = 0  # backticks that opened the code being read
        self._speak = False  # within SSML, where <s> is a sentence

    def feed(self, text: str) -> str:
        """What is decided by the text so far and was not given out before."""
        self._held = Lookahead(self._held + text, final=False).read(self._step)
        return self._writer.take()

    def flush(self) -> str:
        """The rest of what was fed, as if the text ended here; it may go on all the same."""
        self._held = Lookahead(self._held, final=True).read(self._step)
        return self._writer.take()

    def finish(self) -> str:
        """The rest; the text is complete."""
        self._held = Lookahead(self._held, final=True).read(self._step)
        if self._block != "text":
            self._writer.close_line()
        return self._writer.take()

    def _step(self, text: Lookahead, position: int) -> int:
        """Read on from `position`; every look ahead comes before the first change."""
        if self._skip is not None:
            stop = self._skip.read(text, position)
            if self._skip.done:
                self._skip = None
        else:
            char = text.text[position]
            if self._after_return and char == "\n":
                self._after_return = False
                return position + 1
            self._after_return = False
            if char in BREAKS:
                self._break_line(char)
                return position + 1
            if self._line_start:
                return self._begin_line(text, position, char)
            stop = self._inline(text, position, char)
        if stop > position:
            self._before = text.text[stop - 1]
        return stop

    # Lines and blocks

    def _break_line(self, char: str) -> None:
        self._after_return = char == "\r"
        if self._line_start:
            self._breaks = 2
        elif self._block in ("heading", "row"):
            self._writer.end_block(2 if self._block == "heading" else 1)
        else:
            self._breaks = 1
        self._line_start = True
        self._indent = 0
        self._code = 0
        self._before = ""

    def _begin_line(self, text: Lookahead, position: int, char: str) -> int:
        if char.isspace():
            self._indent = min(self._indent + (4 if char == "\t" else 1), MAX_INDENT)
            return position + 1
        if is_dropped(char) and char not in _BULLET_SIGNS and not is_speakable(char):
            self._drops.char(char)
            self._before = ""
            return position + 1
        for read in (
            self._begin_fence,
            self._skip_ornament,
            self._begin_heading,
            self._begin_item,
            self._begin_numbered,
        ):
            stop = read(text, position, char)
            if stop > position:
                return stop
        if char == ">" and self._ends_word(text.at(position + 1), ">"):
            self._drops.char(char)
            self._indent = 0
            return position + 1
        if char == "|":
            self._drops.char(char)
        self._begin_block("row" if char == "|" else "text")
        return position + (char == "|")

    @staticmethod
    def _ends_word(char: str, also: str = "") -> bool:
        return char == "" or char.isspace() or char in also

    def _begin_block(self, block: _Block) -> None:
        """The line turns out to be of `block`: write the line breaks before it."""
        writer = self._writer
        plain = block == "text"
        if plain and self._block == "item" and self._breaks == 1 and self._indent > 1:
            writer.space()  # the item goes on
        else:
            if not plain or self._block != "text" or self._ruled:
                writer.end_block(max(self._breaks, 1))
            elif self._breaks:
                writer.line_break(self._breaks)
            if not plain or self._breaks != 1:
                self._open = {"*": 0, "_": 0}
            self._block = block
        self._breaks = 0
        self._ruled = False
        writer.holds_spaces = self._block != "text"
        self._line_start = False
        self._before = ""

    def _begin_fence(self, text: Lookahead, position: int, char: str) -> int:
        if char not in ("`", "~"):
            return position
        count = text.run(position, char, MAX_FENCE)
        if count < 3:
            return position
        if char == "`":
            end = text.find(_INFO_END, position + count, _MAX_INFO)
            if end >= 0 and text.at(end) == "`":
                return position  # code within one line
        self._drops.passage("a fenced code block")
        self._skip = FenceSkip(char, count)
        self._ruled = True
        self._breaks = 2
        return position + count

    def _skip_ornament(self, text: Lookahead, position: int, char: str) -> int:
        """A line of nothing but rules, table borders and the like."""
        if char not in _ORNAMENTS:
            return position
        count = 0
        for index in range(position, position + _MAX_ORNAMENT):
            here = text.at(index)
            if here == "" or here in BREAKS:
                break
            if here not in _ORNAMENTS:
                return position
            count += not here.isspace()
        else:
            index += 1
        if count < 3:
            return position
        self._drops.passage("a rule or table border")
        if self._block == "row":
            self._line_start = False  # a line of the table like any other
        else:
            self._ruled = True
            self._breaks = 2
        return index

    def _begin_heading(self, text: Lookahead, position: int, char: str) -> int:
        if char != "#":
            return position
        count = text.run(position, "#", 7)
        if count > 6 or not self._ends_word(text.at(position + count)):
            return position
        self._drops.char(char)
        self._begin_block("heading")
        return position + count

    def _begin_item(self, text: Lookahead, position: int, char: str) -> int:
        stop = position + 1
        if char in "-*+":
            following = text.at(stop)
            if not self._ends_word(following):
                return position
            if following == " " and text.at(stop + 1) == "[":
                marked = text.at(stop + 2)
                if marked and marked in " xX" and text.at(stop + 3) == "]":
                    stop += 4
        elif char not in _BULLET_SIGNS:
            return position
        self._drops.char(char)
        self._begin_block("item")
        return stop

    def _begin_numbered(self, text: Lookahead, position: int, char: str) -> int:
        stop = position
        while stop < position + 3 and text.at(stop) and text.at(stop) in "0123456789":
            stop += 1
        if stop == position or text.at(stop) not in (".", ")") or not text.at(stop + 1).isspace():
            return position
        number = int(text.text[position:stop])
        if number != 1 and self._numbers.get(self._indent) != number - 1:
            return position
        end = text.find(_LETTER_END, stop + 2, 10)
        if end > 0 and _MONTHS.fullmatch(text.text, stop + 2, end):
            return position
        self._drops.passage("the number of a list item")
        self._numbers[self._indent] = number
        self._begin_block("item")
        return stop + 1

    # Within a line

    def _inline(self, text: Lookahead, position: int, char: str) -> int:
        word = _WORD.match(text.text, position)
        if word:
            if char in _URL_STARTS and not self._code:
                inside = self._before.isalnum() and not _is_wide(self._before)
                url = None if inside else read_url(text, position)
                if url is not None:
                    return self._take_url(url)
            self._writer.word(word[0])
            return word.end()
        if char in "0123456789#*":
            keycap = position + (2 if text.at(position + 1) == "\ufe0f" else 1)
            if text.at(keycap) == "\u20e3":
                self._drops.passage("a keycap")
                self._writer.gap()
                return keycap + 1
        if char in _RUNS and text.run(position, char, 4) == 4:
            self._drops.char(char)
            self._skip = RunSkip(char)
            self._writer.gap()
            return position + 4
        if self._code:
            if char == "`" and text.run(position, "`", 4) == self._code:
                self._drops.char(char)
                stop = position + self._code
                self._code = 0
                return stop
            return self._literal(text, position, char)
        reader = _READERS.get(char)
        return (reader or Cleaner._literal)(self, text, position, char)

    def _literal(self, text: Lookahead, position: int, char: str) -> int:
        if char in _EMOJI_WITH_SELECTOR and text.at(position + 1) == "\ufe0f":
            self._drops.char(char)
            self._writer.gap()
        elif char in "\u200c\u200d":
            if _joins(self._before, text.at(position + 1)):
                self._writer.joiner(char)
            else:
                self._drops.char(char)
        else:
            self._writer.char(char)
        return position + 1

    def _take_url(self, url: Url) -> int:
        self._drops.passage("parts of a web address")
        for char in url.host:
            self._writer.char(char)
        if url.has_tail:
            self._skip = UrlSkip()
        return url.end

    def _read_emphasis(self, text: Lookahead, position: int, char: str) -> int:
        count = text.run(position, char, 4)
        before, following = self._before, text.at(position + count)
        at_gap = following == "" or following.isspace()
        after_gap = before == "" or before.isspace()
        wide = _is_wide(before) or _is_wide(following)
        inside = before.isalnum() and following.isalnum() and not (char == "*" and wide)
        open_ = self._open[char]
        closes = open_ > 0 and not after_gap
        if inside:
            closes = closes and char == "*" and not (before.isdigit() and following.isdigit())
        opens = not at_gap and not inside and (after_gap or before in _OPENS or wide)
        if closes or opens:
            self._drops.char(char)
        if closes:
            self._open[char] = max(open_ - count, 0)
        elif opens:
            self._open[char] = min(open_ + count, 9)
        elif before == "" and at_gap and following != " ":
            self._drops.char(char)
        else:
            for _ in range(count):
                self._writer.char(char)
        return position + count

    def _read_run(self, text: Lookahead, position: int, char: str) -> int:
        """Marks that are dropped only in certain company."""
        count = text.run(position, char, 4)
        following = text.at(position + count)
        alone = self._before == "" or self._before.isspace()
        if char == "|":
            if self._block == "row":
                self._drops.char(char)
                self._writer.cell()
                return position + count
        elif char == "~":
            if count == 2:
                self._drops.char(char)
                return position + count
        elif char == "#" and alone:
            at_end = following == "" or following in BREAKS
            if (self._block == "heading" and at_end) or (count > 1 and self._ends_word(following)):
                self._drops.char(char)
                return position + count
        for _ in range(count):
            self._writer.char(char)
        return position + count

    def _read_backticks(self, text: Lookahead, position: int, char: str) -> int:
        self._drops.char(char)
        self._code = text.run(position, char, 4)
        return position + self._code

    def _read_escape(self, text: Lookahead, position: int, char: str) -> int:
        following = text.at(position + 1)
        if following and following in _ESCAPED:
            self._drops.char(char)
            self._writer.char(following)
            return position + 2
        if following and following in BREAKS:  # a hard line break
            self._drops.char(char)
        else:
            self._writer.char(char)
        return position + 1

    def _read_entity(self, text: Lookahead, position: int, char: str) -> int:
        entity = read_entity(text, position)
        if entity is None:
            self._writer.char(char)
            return position + 1
        for meant in entity[0]:
            self._writer.char(" " if meant in BREAKS else meant)
        return entity[1]

    def _read_bang(self, text: Lookahead, position: int, char: str) -> int:
        stop = position + 1
        image = text.at(stop) == "["
        if image:
            stop = self._take_link(text, stop)
        if stop == position + 1:
            self._writer.char(char)
            if image:
                self._writer.char("[")
                stop += 1
        return stop

    def _read_bracket(self, text: Lookahead, position: int, char: str) -> int:
        stop = self._take_link(text, position)
        if stop == position:
            self._writer.char(char)
            stop += 1
        return stop

    def _take_link(self, text: Lookahead, position: int) -> int:
        link = read_link(text, position)
        if link is None:
            return position
        self._drops.passage("the address or label of a link")
        inner = Lookahead(text.text[link.start : link.stop], final=True)
        at = 0
        self._before = "["
        while at < inner.size:
            at = self._step(inner, at)
        self._skip = None
        self._code = 0
        if link.end != STREAMED:
            return link.end
        self._skip = DestinationSkip()
        return link.stop + 2

    def _read_less(self, text: Lookahead, position: int, char: str) -> int:
        tag = read_tag(text, position)
        if tag is None:
            self._writer.char(char)
            return position + 1
        self._drops.passage(_KINDS[tag.kind])
        if tag.kind == "address":
            for letter in tag.name:
                self._writer.char(letter)
            return tag.end
        if tag.kind == "tag":
            self._take_tag(tag)
        else:
            self._skip = CommentSkip() if tag.kind == "comment" else RawSkip(tag.name)
        if tag.end != STREAMED:
            return tag.end
        self._skip = self._skip or TagSkip()
        return position + 1

    def _take_tag(self, tag: Tag) -> None:
        """What a tag means for sentences."""
        if tag.name == "speak":
            self._speak = not tag.closing
        if tag.name == "br":
            self._writer.line_break(1)
        elif tag.name in CELL_TAGS:
            if not tag.closing:
                self._writer.cell()
        elif tag.name in BLOCK_TAGS or tag.name in LINE_TAGS or (tag.name == "s" and self._speak):
            self._writer.end_block(2 if tag.name in BLOCK_TAGS else 1)


def _is_wide(char: str) -> bool:
    return char != "" and is_wide(char)


def _joins(before: str, following: str) -> bool:
    """Whether a zero-width (non-)joiner between the two shapes letters."""
    return all(
        char != "" and ord(char) in _JOINING_SCRIPTS and (char.isalpha() or is_mark(char))
        for char in (before, following)
    )


_KINDS = {
    "address": "angle brackets",
    "comment": "a comment",
    "raw": "an element with what it holds",
    "tag": "a tag",
}

_READERS: dict[str, Callable[[Cleaner, Lookahead, int, str], int]] = {
    "*": Cleaner._read_emphasis,
    "_": Cleaner._read_emphasis,
    "~": Cleaner._read_run,
    "#": Cleaner._read_run,
    "|": Cleaner._read_run,
    "`": Cleaner._read_backticks,
    "\\": Cleaner._read_escape,
    "&": Cleaner._read_entity,
    "!": Cleaner._read_bang,
    "[": Cleaner._read_bracket,
    "<": Cleaner._read_less,
}
