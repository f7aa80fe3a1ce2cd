"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kazeia_engine.errors import InvalidInput

__all__ = ["folder_for", "require_folder", "whole_file"]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write what appears as `path` when the block has ended, and only then."""
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def require_folder(out: Path) -> None:
    """Raises InvalidInput when `out` is there and no folder."""
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"{out} exists and is not a folder", param="out")


@contextmanager
def folder_for(out: Path) -> Iterator[None]:
    """`out` exists within the block; when that fails, what was made of it is gone again."""
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # it was not made, or somebody else has put something there
                folder.rmdir()
        raise
