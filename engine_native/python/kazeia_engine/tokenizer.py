"""Text to token ids: the vocabulary of any Qwen-family GGUF file, tokenised by llama.cpp.

Text is normalised to NFC and split by the native Qwen pattern, as in the training data.  Text of
a user never becomes a control token: llama.cpp leaves control tokens alone when asked to, and the
few added tokens it would still match (`<think>`, `<tool_call>`, ...) are kept apart by tokenising
the text in two pieces, cut within the token's text at a place where the pattern splits anyway.
"""

from __future__ import annotations

import ctypes
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from kazeia_engine.errors import EngineClosed, EngineError, InvalidInput, ModelFormatError
from kazeia_engine.gguf_keys import GgufKeys
from kazeia_engine.modelfiles import find_pair, read_header
from kazeia_engine.native_log import native_log
from kazeia_engine.vocabulary import special_tokens

__all__ = ["MAX_COMBINING_RUN", "Tokenizer"]

# NFC sorts the combining marks that follow a letter, in quadratic time; text in any script has a
# handful of them (Unicode's stream-safe format allows 30).
MAX_COMBINING_RUN = 256

_PRE_TOKENIZERS = ("qwen2", "qwen35")
_IM_START, _IM_END = "<|im_start|>", "<|im_end|>"
# Where the Qwen pattern splits whatever stands around: after a letter or digit, before neither.
_SAFE_CUT = re.compile(r"(?<=[^\W_])(?=[\W_])")


class Tokenizer:
    """The tokenizer of one model file.  Safe to use from several threads at once."""

    def __init__(self, path: Path | str) -> None:
        """Opens a GGUF file, or the talker file of a model folder, for its vocabulary alone.

        Raises ModelNotFound, or ModelFormatError when the file has no Qwen vocabulary.
        """
        path = Path(path)
        if path.is_dir():
            path = find_pair(path).talker
        self._path = path
        self._model: Any = None
        _check_family(path)
        with GgufKeys(path) as keys:
            _check_distinct(path, keys.strings("tokenizer.ggml.tokens") or ())
            self._special = special_tokens(keys)
            self._added = _matcher([t for t in special_tokens(keys, added_only=True) if t])
        self._special_ids = frozenset(self._special.values())
        self._api, self._model = _open_vocabulary(path)
        self._vocab = self._api.llama_model_get_vocab(self._model)
        self._n_tokens = int(self._api.llama_vocab_n_tokens(self._vocab))
        self._im_start, self._im_end = self.token_id(_IM_START), self.token_id(_IM_END)

    def __len__(self) -> int:
        """Tokens in the vocabulary, the codec's included."""
        return self._n_tokens

    def close(self) -> None:
        """Frees the vocabulary; using the tokenizer afterwards raises EngineClosed."""
        model, self._model = self._model, None
        if model is not None:
            self._api.llama_model_free(model)

    def __enter__(self) -> Tokenizer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_model", None) is not None:
            self.close()

    def token_id(self, text: str) -> int:
        """The id of a special token, such as `<|im_start|>`.

        Raises ModelFormatError when the vocabulary has no special token of that text.
        """
        try:
            return self._special[text]
        except KeyError:
            raise ModelFormatError(f"{self._path}: the vocabulary has no token {text}") from None

    def is_special(self, token: int) -> bool:
        """Whether an id is a control or added token, so not text."""
        return token in self._special_ids

    def encode(self, text: str, parse_special: bool = False) -> list[int]:
        """Token ids of `text`, normalised to NFC.

        parse_special: strings such as `<|im_end|>` become control tokens.  Only for text of your
        own; by default they are spelt out like any other text.
        Raises InvalidInput for text that is not valid Unicode or holds NUL characters.
        """
        text = _normalised(text)
        if parse_special:
            return self._tokenize(text, parse_special=True)
        ids: list[int] = []
        for piece in self._without_added_tokens(text):
            ids += self._tokenize(piece, parse_special=False)
        if not self._special_ids.isdisjoint(ids):
            raise EngineError("text was tokenised into control tokens; it is not used")
        return ids

    def wrap(self, text: str) -> list[int]:
        """Ids of `<|im_start|>assistant\\n{text}<|im_end|>\\n<|im_start|>assistant\\n`.

        They are 3 role tokens, the text's and 5 trailing ones.
        """
        start, end, newline, assistant = self._frame()
        return [start, *self.encode(f"assistant\n{text}"), end, *newline, start, *assistant]

    def wrap_instruct(self, instruct: str) -> list[int]:
        """Ids of `<|im_start|>user\\n{instruct}<|im_end|>\\n`."""
        start, end, newline, _ = self._frame()
        return [start, *self.encode(f"user\n{instruct}"), end, *newline]

    def wrap_reference(self, reference: str) -> list[int]:
        """Ids of `<|im_start|>assistant\\n{reference}<|im_end|>\\n`; the text is ids[3:-2]."""
        start, end, newline, _ = self._frame()
        return [start, *self.encode(f"assistant\n{reference}"), end, *newline]

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, special tokens spelt out; invalid UTF-8 becomes U+FFFD.

        Raises InvalidInput for an id outside the vocabulary.
        """
        return b"".join(self._piece(i) for i in ids).decode("utf-8", "replace")

    def _frame(self) -> tuple[int, int, list[int], list[int]]:
        return self._im_start, self._im_end, self.encode("\n"), self.encode("assistant\n")

    def _without_added_tokens(self, text: str) -> list[str]:
        """`text` in pieces none of which holds the text of an added token."""
        if self._added is None:
            return [text]
        cuts: set[int] = set()
        for match in self._added.finditer(text):
            start, end = match.span(1)
            cut = _SAFE_CUT.search(text, start + 1, end)  # the lookahead keeps it before end
            if cut is None:
                raise InvalidInput(
                    f"the text holds {match[1]!r}, a control sequence of the model", param="text"
                )
            cuts.add(cut.start())
        borders = [0, *sorted(cuts), len(text)]
        return [text[a:b] for a, b in pairwise(borders)]

    def _tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        if self._model is None:
            raise EngineClosed("the tokenizer has been closed")
        data = text.encode("utf-8")
        if not data:
            return []
        room = len(data) + 1
        buffer = (self._api.llama_token * room)()
        n = self._api.llama_tokenize(
            self._vocab, data, len(data), buffer, room, False, parse_special
        )
        if n < 0:
            raise EngineError(f"llama.cpp cannot tokenise a text of {len(data)} bytes")
        return list(buffer[:n])

    def _piece(self, token: int) -> bytes:
        if self._model is None:
            raise EngineClosed("the tokenizer has been closed")
        if not 0 <= token < self._n_tokens:
            raise InvalidInput(f"token id {token}: expected 0 to {self._n_tokens - 1}", param="ids")
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = self._api.llama_token_to_piece(self._vocab, token, buffer, room, 0, True)
            if n >= 0:
                return buffer.raw[:n]
            room = -n


def _normalised(text: str) -> str:
    if not isinstance(text, str):
        raise InvalidInput(f"text is a {type(text).__name__}, expected a string", param="text")
    if "\0" in text:
        raise InvalidInput("the text holds a NUL character", param="text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as err:
        raise InvalidInput(
            f"the text is not valid Unicode: lone surrogate at character {err.start}", param="text"
        ) from None
    if text.isascii():
        return text
    run = 0
    for ch in text:
        run = run + 1 if unicodedata.combining(ch) else 0
        if run > MAX_COMBINING_RUN:
            raise InvalidInput(
                f"the text has more than {MAX_COMBINING_RUN} combining marks in a row",
                param="text",
            )
    return unicodedata.normalize("NFC", text)


def _matcher(tokens: list[str]) -> re.Pattern[str] | None:
    """Finds every place where one of `tokens` begins, the shortest where several do."""
    if not tokens:
        return None
    choices = "|".join(map(re.escape, sorted(tokens, key=len)))
    return re.compile(f"(?=({choices}))")


def _check_family(path: Path) -> None:
    values = read_header(path).values
    model, pre = values.get("tokenizer.ggml.model"), values.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise ModelFormatError(
            f"{path}: tokenizer.ggml.model is {model!r} and tokenizer.ggml.pre {pre!r}, "
            f"expected 'gpt2' and {' or '.join(map(repr, _PRE_TOKENIZERS))}"
        )


def _check_distinct(path: Path, tokens: Sequence[str]) -> None:
    # llama.cpp ends the process when two tokens have the same text.
    if len(set(tokens)) != len(tokens):
        twice = next(t for t, n in Counter(tokens).items() if n > 1)
        raise ModelFormatError(f"{path}: tokenizer.ggml.tokens holds {twice!r} more than once")


def _open_vocabulary(path: Path) -> tuple[Any, Any]:
    """llama.cpp's functions and the model, loaded without its weights."""
    from llama_cpp import llama_cpp as api

    # Importing llama_cpp installs a callback that prints.
    api.llama_log_set(ctypes.cast(native_log().callback, api.llama_log_callback), None)
    params = api.llama_model_default_params()
    params.vocab_only = True
    with native_log().errors() as errors:
        model = api.llama_model_load_from_file(bytes(path), params)
    if not model:
        reason = "; ".join(errors) or "llama.cpp cannot open it"
        raise ModelFormatError(f"{path}: no usable vocabulary: {reason}")
    return api, model
