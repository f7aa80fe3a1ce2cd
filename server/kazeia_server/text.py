"""Cutting text into pieces a voice can speak one after another.

Every function reads each character a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["has_content", "split_pieces", "split_sentences"]

_ENDERS = frozenset(".!?…。！？｡")
_WIDE_ENDERS = frozenset("。！？｡")  # end a sentence without a space after them
_CLOSERS = frozenset("\"')]}”’»」』）】")
_CLAUSE_MARKS = frozenset(",;:—，；：、")
_BREAKS = frozenset("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
_ABBREVIATIONS = frozenset(
    (
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "st",
        "sr",
        "jr",
        "gen",
        "col",
        "capt",
        "lt",
        "sgt",
        "rev",
        "hon",
        "messrs",
        "mme",
        "mlle",
        "vs",
        "etc",
        "no",
        "fig",
    )
)
_LONGEST_ABBREVIATION = max(map(len, _ABBREVIATIONS))


def has_content(text: str) -> bool:
    """Whether anything in `text` is visible: not only spaces, controls or zero-width characters."""
    return any(char.isprintable() and not char.isspace() for char in text)


def split_sentences(text: str) -> Iterator[str]:
    """Sentences of `text` in order, stripped, none empty.

    A sentence ends at a line break, or at end punctuation (with closing quotes and brackets)
    before a space; not after a title or an initial ("Dr. Smith", "J. Doe"), nor before a
    lower-case word.
    """
    start = i = 0
    size = len(text)
    while i < size:
        char = text[i]
        if char in _BREAKS:
            end = i = i + 1
        elif char in _ENDERS:
            mark = i
            wide = False
            while i < size and (text[i] in _ENDERS or text[i] in _CLOSERS):
                wide = wide or text[i] in _WIDE_ENDERS
                i += 1
            end = i
            if not wide and not _ends_sentence(text, start, mark, end):
                continue
        else:
            i += 1
            continue
        sentence = text[start:end].strip()
        start = end
        if sentence:
            yield sentence
    rest = text[start:].strip()
    if rest:
        yield rest


def _ends_sentence(text: str, start: int, mark: int, end: int) -> bool:
    """Whether the punctuation text[mark:end] ends the sentence that began at `start`."""
    if end < len(text) and not text[end].isspace():
        return False
    if end - mark > 1 or text[mark] != ".":
        return True
    following = end
    while following < len(text) and text[following].isspace():
        if text[following] in _BREAKS:
            return True
        following += 1
    if following < len(text) and text[following].islower():
        return False
    word_start = mark
    floor = max(start, mark - _LONGEST_ABBREVIATION - 1)
    while word_start > floor and text[word_start - 1].isalpha():
        word_start -= 1
    word = text[word_start:mark]
    initial = len(word) == 1 and word.isupper() and word != "I"
    return not (initial or word.lower() in _ABBREVIATIONS)


def split_pieces(text: str, *, limit: int, first_limit: int | None = None) -> Iterator[str]:
    """Sentences of `text`, those longer than `limit` characters cut further.

    `first_limit` bounds the first piece, so that its sound comes early.  Cuts fall after a
    clause mark if there is one in the later two thirds, else at a space, else anywhere.
    """
    bound = limit if first_limit is None else min(limit, first_limit)
    for sentence in split_sentences(text):
        position = 0
        while len(sentence) - position > bound:
            cut = _cut_position(sentence, position, bound)
            piece = sentence[position:cut].strip()
            position = cut
            while position < len(sentence) and sentence[position].isspace():
                position += 1
            if piece:
                yield piece
                bound = limit
        piece = sentence[position:].strip()
        if piece:
            yield piece
            bound = limit


def _cut_position(sentence: str, position: int, bound: int) -> int:
    """Where to cut within sentence[position:position + bound]; more than `position`."""
    space = 0
    for i in range(position + bound, position + bound // 3, -1):
        if not sentence[i].isspace():
            continue
        if sentence[i - 1] in _CLAUSE_MARKS:
            return i
        space = space or i
    return space or position + bound
