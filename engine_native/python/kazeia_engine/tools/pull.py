"""`kazeia pull`: a model folder from the Hugging Face hub, resumed and verified.

Partial files are continued by the hub's own client.  Afterwards every large file is hashed and
compared with the SHA-256 the hub states for it, and a file that differs is removed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kazeia_engine.errors import EngineError, InvalidInput, ModelFormatError, ModelNotFound
from kazeia_engine.tools.files import require_folder

__all__ = ["KNOWN_MODELS", "Pulled", "pull", "repository"]

KNOWN_MODELS = {
    "0.6b-custom": "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
    "0.6b-base": "Qwen/Qwen3-TTS-12Hz-0.6B-Base",
    "1.7b-custom": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "1.7b-design": "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
    "1.7b-base": "Qwen/Qwen3-TTS-12Hz-1.7B-Base",
}
_SUFFIXES = (".json", ".txt", ".safetensors", ".gguf")
_BLOCK = 1 << 20

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pulled:
    """What was fetched."""

    folder: Path
    repository: str
    revision: str  # commit
    files: tuple[str, ...]
    verified: tuple[str, ...]  # files whose SHA-256 was compared
    has_pair: bool  # GGUF files: usable without converting


def repository(name: str) -> str:
    """The repository of a short name or of an `owner/name`.

    Raises InvalidInput listing the short names.
    """
    if name.lower() in KNOWN_MODELS:
        return KNOWN_MODELS[name.lower()]
    owner, slash, rest = name.partition("/")
    if not (owner and slash and rest) or "/" in rest or ".." in name:
        raise InvalidInput(
            f"unknown model {name!r}: expected one of {', '.join(KNOWN_MODELS)}, or OWNER/NAME",
            param="name",
        )
    return name


def pull(
    name: str, out: Path, *, revision: str | None = None, log: Log = lambda _line: None
) -> Pulled:
    """Downloads the model `name` into the folder `out`; what is already there is kept.

    Raises InvalidInput for an unknown name, ModelNotFound when the hub has no such repository or
    revision, ModelFormatError when a file arrives with another SHA-256, EngineError when the hub
    cannot be reached.
    """
    repo = repository(name)
    require_folder(out)
    commit, expected = _hub(repo, partial(_listing, repo=repo, revision=revision))
    log(f"{repo} at {commit[:12]}: {len(expected)} files")
    verified = []
    for n, (file, digest) in enumerate(expected.items(), 1):
        log(f"[{n}/{len(expected)}] {file}")
        path = Path(_hub(repo, partial(_download, repo=repo, file=file, commit=commit, out=out)))
        if digest is not None:
            _verify(path, digest)
            verified.append(file)
    files = tuple(expected)
    return Pulled(
        folder=out,
        repository=repo,
        revision=commit,
        files=files,
        verified=tuple(verified),
        has_pair=any(f.endswith(".gguf") for f in files),
    )


def _listing(hub: Any, *, repo: str, revision: str | None) -> tuple[str, dict[str, str | None]]:
    """The commit, and the SHA-256 (None for small files) of every file worth having."""
    info = hub.HfApi().model_info(repo, revision=revision, files_metadata=True)
    files = {
        s.rfilename: s.lfs.sha256 if s.lfs is not None else None
        for s in info.siblings or []
        if s.rfilename.endswith(_SUFFIXES)
    }
    if not files:
        raise ModelFormatError(f"{repo} holds no model files")
    return str(info.sha), files


def _download(hub: Any, *, repo: str, file: str, commit: str, out: Path) -> str:
    return str(hub.hf_hub_download(repo, file, revision=commit, local_dir=out))


def _hub(repo: str, work: Callable[[Any], Any]) -> Any:
    """Runs `work` with the hub's client, its errors turned into ours."""
    import huggingface_hub as hub
    from huggingface_hub import errors

    try:
        return work(hub)
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as err:
        raise ModelNotFound(
            f"the hub has no {repo} (or not that revision, or it needs a login)"
        ) from err
    except errors.EntryNotFoundError as err:
        # Also raised when a file is neither in the cache nor reachable.
        raise EngineError(f"cannot fetch a file of {repo}: {_line(err)}") from err
    except (errors.HTTPError, ConnectionError, TimeoutError) as err:  # HTTPError: of its httpx
        raise EngineError(f"the hub cannot be reached for {repo}: {_line(err)}") from err


def _line(err: Exception) -> str:
    return " ".join(str(err).split()) or type(err).__name__


def _verify(path: Path, expected: str) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != expected:
        path.unlink()
        raise ModelFormatError(
            f"{path.name} arrived damaged: SHA-256 {digest.hexdigest()}, expected {expected}; "
            "it was removed, pull again"
        )
