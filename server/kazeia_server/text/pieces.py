"""From words to pieces: how much of a text a voice gets to speak in one go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kazeia_server.text.characters import columns, is_speakable

__all__ = ["Pause", "PieceEnd", "PiecePacker", "Split", "Unit"]

# How a text is cut into pieces: a quick first one and then longer ones, one a sentence, not at all.
Split = Literal["auto", "sentence", "none"]
Pause = Literal["none", "sentence", "paragraph"]

# A shorter sentence ("Yes.") shares the piece of the one after it: alone it sounds clipped, and
# models are least reliable on the shortest texts.
_SHORT_COLUMNS = 10
_MAX_PREFIX_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class PieceEnd:
    """The open piece is complete; `pause` tells what comes after it.

    none: the sentence goes on; sentence: another sentence; paragraph: another paragraph.
    """

    pause: Pause


@dataclass(frozen=True, slots=True)
class Unit:
    """Text that is not cut: a word with its punctuation, or one Chinese or Japanese character."""

    text: str
    spaced: bool  # a space stands before it
    clause: bool  # a clause ends with it


class PiecePacker:
    """Packs units into pieces of at most a limit of columns.

    Text is given out as soon as it is certain which piece it belongs to.  Behind a place where
    the piece could end well (a clause mark in its later half, or the end of a sentence), units
    are held until the next such place is reached, or the limit, at which the piece ends there.
    """

    def __init__(self, split: Split, *, first_limit: int, limit: int) -> None:
        self._split = split
        self._limit = limit
        self._bound = limit if split == "none" else min(first_limit, limit)
        self._first = True
        self._events: list[str | PieceEnd] = []
        self._width = 0  # columns of the open piece given out
        self._prefix: list[Unit] = []  # punctuation waiting for something to say
        self._fallback: Pause | None = None  # the piece can end where it is now, with this pause
        self._held: list[Unit] = []  # what came after that place
        self._held_width = 0

    def take(self) -> list[str | PieceEnd]:
        """Events since the last call, adjacent strings joined."""
        events: list[str | PieceEnd] = []
        strings: list[str] = []
        for event in self._events:
            if isinstance(event, str):
                strings.append(event)
                continue
            if strings:
                events.append("".join(strings))
                strings.clear()
            events.append(event)
        if strings:
            events.append("".join(strings))
        self._events.clear()
        return events

    @property
    def first_held(self) -> Unit | None:
        """What will be given out next of what is held."""
        return self._held[0] if self._held else None

    def add(self, unit: Unit) -> None:
        """The next unit."""
        if not self._width:
            before = sum(columns(held.text) + 1 for held in self._prefix)
            if not is_speakable(unit.text):
                if before <= _MAX_PREFIX_COLUMNS:
                    self._prefix.append(unit)
                return
            prefix, self._prefix = self._prefix, []
            if before <= _MAX_PREFIX_COLUMNS and before + columns(unit.text) < self._bound:
                for held in prefix:
                    self._give(held)
        width = columns(unit.text) + unit.spaced
        if self._width + self._held_width + width > self._bound and self._width:
            self._end(self._fallback or "none")
            self.add(unit)
        elif self._fallback is None:
            self._give(unit)
            if unit.clause and self._width >= self._bound // 2:
                self._fallback = "none"
        else:
            self._held.append(unit)
            self._held_width += width
            if unit.clause and self._fallback == "none":
                self._release()
                self._fallback = "none"

    def end_sentence(self, *, marked: bool) -> None:
        """The sentence is over; `marked`: its last unit says so.

        Only then can another one follow in the same piece.
        """
        self._prefix.clear()
        if self._split == "none" or not self._width:
            return
        self._release()
        enough = _SHORT_COLUMNS if self._first else self._limit // 2
        if self._split == "sentence" or not marked or self._width >= enough:
            self._end("sentence")
        elif self._width >= _SHORT_COLUMNS:
            self._fallback = "sentence"

    def end_paragraph(self) -> None:
        """The paragraph is over."""
        if self._split != "none":
            self.end_piece("paragraph")

    def end_piece(self, pause: Pause) -> None:
        """End the open piece, if there is one."""
        self._prefix.clear()
        if self._width:
            self._release()
            self._end(pause)

    def _give(self, unit: Unit) -> None:
        spaced = unit.spaced and self._width > 0
        self._events.append(" " + unit.text if spaced else unit.text)
        self._width += columns(unit.text) + spaced

    def _release(self) -> None:
        """Give out what is held: it belongs to the open piece."""
        held: Iterable[Unit] = self._held
        self._forget_fallback()
        for unit in held:
            self._give(unit)

    def _end(self, pause: Pause) -> None:
        """End the open piece before what is held, which begins the next one."""
        held = self._held
        self._forget_fallback()
        self._events.append(PieceEnd(pause))
        self._width = 0
        self._first = False
        self._bound = self._limit
        for unit in held:
            self.add(unit)

    def _forget_fallback(self) -> None:
        self._fallback = None
        self._held = []
        self._held_width = 0
