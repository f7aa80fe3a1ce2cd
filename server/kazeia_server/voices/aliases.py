"""More names for the voices there are.

Clients of the OpenAI speech API send one of its thirteen voice names, and some of them check that
before sending; every door takes those names and `default`.  A voice that really has such a name
wins over the alias.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kazeia_server.errors import UnknownVoice
from kazeia_server.settings import Settings
from kazeia_server.voices.backend import BackendInfo

__all__ = ["OPENAI_VOICES", "operator_aliases", "resolve_alias"]

# The voices of the OpenAI speech API and the preset speaker of Qwen3-TTS whose description in the
# model card comes nearest.  Two presets speak a Chinese dialect (dylan: Beijing, eric: Sichuan)
# and stand for none, so that an alias never decides on a dialect.
OPENAI_VOICES: Mapping[str, str] = MappingProxyType(
    {
        "alloy": "vivian",
        "ash": "ryan",
        "ballad": "uncle_fu",
        "cedar": "aiden",
        "coral": "sohee",
        "echo": "aiden",
        "fable": "ryan",
        "marin": "serena",
        "nova": "vivian",
        "onyx": "uncle_fu",
        "sage": "serena",
        "shimmer": "ono_anna",
        "verse": "ryan",
    }
)
_DEFAULT = "default"


def operator_aliases(settings: Settings) -> dict[str, str]:
    """The aliases of `settings.voice_aliases`, alias to voice."""
    aliases = {}
    for entry in settings.voice_aliases:
        alias, _, voice = (part.strip() for part in entry.partition("="))
        aliases[alias] = voice
    return aliases


def resolve_alias(name: str, info: BackendInfo, settings: Settings) -> str | None:
    """The voice of `info` that `name` stands for; None: `name` is no alias.

    The operator's aliases come first, and may lead to one of the others.  The OpenAI names stand
    for the default voice where the Qwen3-TTS presets are missing, `default` always does.  Case
    does not matter.  The empty string: voices have no names here (`info.voices` is empty).

    Raises UnknownVoice when the operator's alias leads to a voice that is not there.
    """
    chosen = {alias.casefold(): voice for alias, voice in operator_aliases(settings).items()}
    target = chosen.get(name.casefold())
    wanted = (target or name).casefold()
    if target is not None and (found := _named(wanted, info)):
        return found
    if wanted in OPENAI_VOICES:
        return _named(OPENAI_VOICES[wanted], info) or info.default_voice or ""
    if wanted == _DEFAULT:
        return info.default_voice or ""
    if target is not None:
        known = ", ".join(info.voices) or "no named voices"
        raise UnknownVoice(
            f"voice {name!a} is set to stand for {target!a}; {info.name} has {known}",
            param="voice",
        )
    return None


def _named(wanted: str, info: BackendInfo) -> str | None:
    return next((name for name in info.voices if name.casefold() == wanted.casefold()), None)
