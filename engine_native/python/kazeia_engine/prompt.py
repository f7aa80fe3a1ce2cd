"""The prompt of a text: what the talker reads at each position before the first frame.

Every position is the sum of a text embedding and a codec embedding; -1 means that a side is
absent.  In order, for a text of N tokens:

    instruction, if any  all its tokens                      | -
    role, 3              <|im_start|> assistant \\n            | -
    language, 3 or 4     tts_pad                             | nothink think_bos think_eos, or
                                                             | think think_bos LANGUAGE think_eos
    speaker, 0 or 1      tts_pad                             | speaker
    1                    tts_bos                             | pad
  whole text:
    N + 1                text tokens, tts_eos                | pad
    1                    tts_pad                             | bos
  streaming text:
    1                    first text token                    | bos

Beside the generated frames go the trailing ids, one a frame, and tts_pad ever after: in the
streaming layout the rest of the text and tts_eos, in the whole layout tts_pad alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from kazeia_engine import binding
from kazeia_engine.errors import InvalidInput, UnknownLanguage, UnknownSpeaker
from kazeia_engine.tokenizer import Tokenizer
from kazeia_engine.types import TextMode
from kazeia_engine.vocabulary import ModelVocabulary

__all__ = [
    "LANGUAGE_CODES",
    "MAX_TEXT_CHARS",
    "MAX_TEXT_TOKENS",
    "Layout",
    "Prompt",
    "build_prompt",
    "open_prompt",
    "text_ids",
]

Layout = Literal["whole", "streaming"]

# Half an hour of speech, more than any context holds; texts beyond are refused unread.
MAX_TEXT_CHARS = 50_000
MAX_TEXT_TOKENS = 8192  # a quarter of the talker's context; speech takes about 3 frames a token

LANGUAGE_CODES: Mapping[str, str] = {
    "zh": "chinese",
    "en": "english",
    "de": "german",
    "it": "italian",
    "pt": "portuguese",
    "es": "spanish",
    "ja": "japanese",
    "ko": "korean",
    "fr": "french",
    "ru": "russian",
}

_ROLE, _TAIL = 3, 5  # tokens around the text in Tokenizer.wrap
_ABSENT = -1


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids of the positions before the first frame, and of the text fed beside the frames.

    text_ids, codec_ids: int32 [positions]; -1: that side is absent.
    trailing_ids: int32 [n], fed one a frame; afterwards pad_text_id for ever.
    n_prefix: leading positions that do not depend on the text.
    """

    text_ids: npt.NDArray[np.int32]
    codec_ids: npt.NDArray[np.int32]
    trailing_ids: npt.NDArray[np.int32]
    pad_text_id: int
    n_text_tokens: int
    n_prefix: int
    layout: Layout
    warnings: tuple[str, ...] = ()

    @property
    def n_positions(self) -> int:
        """Positions before the first frame."""
        return len(self.text_ids)

    def native(self) -> binding.PromptStruct:
        """The native form; it points into this prompt."""
        return binding.PromptStruct(
            text_ids=binding.ints(self.text_ids),
            codec_ids=binding.ints(self.codec_ids),
            n_positions=self.n_positions,
            trailing_ids=binding.ints(self.trailing_ids),
            n_trailing=len(self.trailing_ids),
            pad_text_id=self.pad_text_id,
            n_text_tokens=1 if self.layout == "streaming" else self.n_text_tokens,
            n_prefix=self.n_prefix,
        )


def build_prompt(
    vocab: ModelVocabulary,
    tokenizer: Tokenizer,
    text: str,
    *,
    speaker: str | None = None,
    language: str = "auto",
    instruct: str | None = None,
    text_mode: TextMode = "auto",
) -> Prompt:
    """The prompt of a complete text.

    speaker: a name of `vocab.speakers`, in any case; None lets the model choose a voice.
    language: "auto", a name of `vocab.languages` or an ISO 639-1 code, in any case.
    instruct: how to speak; left out, with a warning, for models that do not take one.
    text_mode: "auto" is "whole" here, since the text is complete.

    Raises UnknownSpeaker, UnknownLanguage or InvalidInput, saying what was expected.
    """
    _check_text(text, "text")
    ids = tokenizer.wrap(text)
    body = ids[_ROLE:-_TAIL]
    if not 1 <= len(body) <= MAX_TEXT_TOKENS:
        raise InvalidInput(
            f"the text has {len(body)} tokens, expected 1 to {MAX_TEXT_TOKENS}; split it",
            param="text",
        )
    head = _head(vocab, tokenizer, ids[:_ROLE], speaker, language, instruct)
    if _layout(text_mode) == "streaming":
        return _streaming(vocab, head, body, closed=True)
    codec, tts = vocab.codec, vocab.text
    return Prompt(
        text_ids=np.array([*head.text, *body, tts.eos, tts.pad], np.int32),
        codec_ids=np.array([*head.codec, *[codec.pad] * (len(body) + 1), codec.bos], np.int32),
        trailing_ids=np.array([], np.int32),
        pad_text_id=tts.pad,
        n_text_tokens=len(body),
        n_prefix=len(head.text),
        layout="whole",
        warnings=head.warnings,
    )


def open_prompt(
    vocab: ModelVocabulary,
    tokenizer: Tokenizer,
    ids: Sequence[int],
    *,
    speaker: str | None = None,
    language: str = "auto",
    instruct: str | None = None,
) -> Prompt:
    """The streaming prompt of a text of which the first `ids` (one or more) are known.

    The rest follows into the stream, tts_eos last.  Otherwise as `build_prompt`.
    """
    role = tokenizer.wrap("")[:_ROLE]
    head = _head(vocab, tokenizer, role, speaker, language, instruct)
    return _streaming(vocab, head, list(ids), closed=False)


def text_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of `text` at the beginning of an utterance."""
    return tokenizer.wrap(text)[_ROLE:-_TAIL]


@dataclass(frozen=True, slots=True)
class _Head:
    """The positions before the text."""

    text: list[int]
    codec: list[int]
    warnings: tuple[str, ...]


def _streaming(vocab: ModelVocabulary, head: _Head, body: list[int], *, closed: bool) -> Prompt:
    return Prompt(
        text_ids=np.array([*head.text, body[0]], np.int32),
        codec_ids=np.array([*head.codec, vocab.codec.bos], np.int32),
        trailing_ids=np.array([*body[1:], *([vocab.text.eos] if closed else [])], np.int32),
        pad_text_id=vocab.text.pad,
        n_text_tokens=len(body),
        n_prefix=len(head.text),
        layout="streaming",
        warnings=head.warnings,
    )


def _head(
    vocab: ModelVocabulary,
    tokenizer: Tokenizer,
    role: list[int],
    speaker: str | None,
    language: str,
    instruct: str | None,
) -> _Head:
    speaker_name, speaker_id = _speaker(vocab, speaker)
    language_id = _language(vocab, language, speaker_name)
    instruct_ids, warnings = _instruction(vocab, tokenizer, instruct)

    codec, tts = vocab.codec, vocab.text
    tags = (
        [codec.nothink, codec.think_bos, codec.think_eos]
        if language_id is None
        else [codec.think, codec.think_bos, language_id, codec.think_eos]
    )
    if speaker_id is not None:
        tags.append(speaker_id)
    first = [*instruct_ids, *role]
    return _Head(
        text=[*first, *[tts.pad] * len(tags), tts.bos],
        codec=[*[_ABSENT] * len(first), *tags, codec.pad],
        warnings=warnings,
    )


def _check_text(text: str, param: str) -> None:
    if not isinstance(text, str):
        raise InvalidInput(f"{param} is a {type(text).__name__}, expected a string", param=param)
    if not text or text.isspace():
        raise InvalidInput(f"the {param} is empty, expected something to say", param=param)
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidInput(
            f"the {param} has {len(text)} characters, expected at most {MAX_TEXT_CHARS}",
            param=param,
        )


def _layout(text_mode: TextMode) -> Layout:
    if text_mode not in get_args(TextMode):
        raise InvalidInput(
            f"text_mode {text_mode!r}: expected {', '.join(get_args(TextMode))}", param="text_mode"
        )
    return "streaming" if text_mode == "streaming" else "whole"


def _speaker(vocab: ModelVocabulary, speaker: str | None) -> tuple[str | None, int | None]:
    if speaker is None or speaker == "":
        return None, None
    name = speaker.lower()
    if name not in vocab.speakers:
        known = ", ".join(vocab.speakers)
        expected = f"expected one of {known}" if known else f"a {vocab.kind} model has no speakers"
        raise UnknownSpeaker(f"unknown speaker {speaker!r}: {expected}", param="speaker")
    return name, vocab.speakers[name]


def _language(vocab: ModelVocabulary, language: str, speaker: str | None) -> int | None:
    name = language.lower()
    name = LANGUAGE_CODES.get(name.replace("_", "-").split("-")[0], name)
    if name != "auto" and name not in vocab.languages:
        known = ", ".join(("auto", *vocab.language_names))
        raise UnknownLanguage(
            f"unknown language {language!r}: expected one of {known}", param="language"
        )
    dialect = vocab.dialects.get(speaker) if speaker is not None else None
    if dialect is not None and name in ("chinese", "auto"):
        name = dialect
    return None if name == "auto" else vocab.languages[name]


def _instruction(
    vocab: ModelVocabulary, tokenizer: Tokenizer, instruct: str | None
) -> tuple[list[int], tuple[str, ...]]:
    if instruct is None or instruct == "":
        return [], ()
    _check_text(instruct, "instruct")
    if not vocab.follows_instructions:
        what = "small custom_voice" if vocab.kind == "custom_voice" else vocab.kind
        return [], (f"the instruction was left out: a {what} model does not follow instructions",)
    ids = tokenizer.wrap_instruct(instruct)
    if len(ids) > MAX_TEXT_TOKENS:
        raise InvalidInput(
            f"the instruct has {len(ids)} tokens, expected at most {MAX_TEXT_TOKENS}",
            param="instruct",
        )
    return ids, ()
