"""The check of a request against the voice and the settings."""

from __future__ import annotations

from dataclasses import replace

from kazeia_server.errors import InvalidRequest, TextTooLong, UnknownLanguage, UnknownVoice
from kazeia_server.settings import Settings
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.text.segment import has_content
from kazeia_server.voices.aliases import resolve_alias
from kazeia_server.voices.backend import BackendInfo

__all__ = ["LANGUAGE_CODES", "check_request", "check_text"]

# ISO 639-1 codes of the languages Qwen3-TTS names in English.
LANGUAGE_CODES = {
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fr": "french",
    "it": "italian",
    "ja": "japanese",
    "ko": "korean",
    "pt": "portuguese",
    "ru": "russian",
    "zh": "chinese",
}


def check_text(text: str, settings: Settings, *, clean: bool = True) -> None:
    """Raise InvalidRequest for a text that is empty, too long, or malformed.

    `clean`: what is malformed will be cleaned away, and is no reason to refuse the text.
    """
    if len(text) > settings.max_text_chars:
        raise TextTooLong(
            f"text has {len(text)} characters; at most {settings.max_text_chars} are accepted",
            param="text",
        )
    if not has_content(text):
        raise InvalidRequest("text is empty: expected at least one visible character", param="text")
    if not clean:
        _check_characters(text, "text")


def check_request(
    request: SynthesisRequest, info: BackendInfo, settings: Settings, *, live: bool = False
) -> SynthesisRequest:
    """The request as the voice source takes it: names in their own spelling, limits applied.

    `live`: the text comes later.  Raises InvalidRequest (UnknownVoice, UnknownLanguage,
    TextTooLong).
    """
    if not live:
        check_text(request.text, settings, clean=request.clean)
    if request.instruct is not None:
        _check_characters(request.instruct, "instruct")
    frames_a_second = request.speed * info.sample_rate / info.samples_per_frame  # as heard
    longest = int(settings.max_audio_s * frames_a_second)
    frames = request.max_frames or longest
    return replace(
        request,
        voice=_match_voice(request.voice, info, settings),
        language=_match_language(request.language, info),
        instruct=request.instruct or None,
        max_frames=min(frames, max(longest, 1)),
    )


def _match_voice(voice: str | None, info: BackendInfo, settings: Settings) -> str | None:
    if voice is None:
        return info.default_voice
    voice = voice.strip()  # "anna, Bert" cut at its comma
    for name in info.voices:
        if name.casefold() == voice.casefold():
            return name
    if (aliased := resolve_alias(voice, info, settings)) is not None:
        return aliased or None
    if not info.voices:
        raise UnknownVoice(f"{info.name} has no named voices: leave the voice out", param="voice")
    raise UnknownVoice(
        f"unknown voice {_printable(voice)}; {info.name} has {', '.join(info.voices)}",
        param="voice",
    )


def _match_language(language: str, info: BackendInfo) -> str:
    wanted = language.casefold()
    if wanted == "auto":
        return "auto"
    wanted = LANGUAGE_CODES.get(wanted.replace("_", "-").partition("-")[0], wanted)
    for name in info.languages:
        if name.casefold() == wanted:
            return name
    known = ", ".join(("auto", *info.languages))
    raise UnknownLanguage(
        f"unknown language {_printable(language)}; {info.name} has {known}", param="language"
    )


def _check_characters(text: str, param: str) -> None:
    """Refuse what cannot be handed to a C library as UTF-8."""
    if "\0" in text:
        raise InvalidRequest(f"{param} holds a NUL character", param=param)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{param} holds half of a surrogate pair at position {error.start}", param=param
        ) from None


def _printable(name: str) -> str:
    return ascii(name) if len(name) <= 60 else ascii(name[:57] + "...")
