"""What the commands share: exit codes, messages, progress, and files of figures."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console

from kazeia_engine.tools.files import whole_file

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

__all__ = [
    "FAILED",
    "bar",
    "bytes_progress",
    "check_json_target",
    "console_for_tables",
    "errors_as_exit_codes",
    "note",
    "refuse",
    "tenths",
    "write_json",
]

FAILED, _BAD_INPUT, _INTERRUPTED, _TERMINATED = 1, 2, 130, 143


def console_for_tables() -> Console:
    """For tables: as wide as the terminal, and not wrapped where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def write_json(path: Path | None, figures: dict[str, Any]) -> None:
    """Writes figures, shown already, whole or not at all; a failure names the file."""
    if path is None:
        return
    text = json.dumps(figures, indent=2) + "\n"
    try:
        # A pipe, a terminal or a link (/dev/stdout is one) is written to, not replaced.
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_text(text, encoding="utf-8")
            return
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}") from error


def check_json_target(path: Path | None) -> None:
    """Refuses now what would fail after minutes."""
    if path is not None and not path.absolute().parent.is_dir():
        refuse(f"{path.parent} is not a folder: cannot write {path}")
    if path is not None and path.is_dir():
        refuse(f"{path} is a folder: expected the name of a JSON file")


@contextmanager
def bytes_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal, a line every tenth elsewhere; called with name, bytes done, all."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield tenths(note)
        return
    from rich.progress import DownloadColumn, TimeRemainingColumn

    with bar(console, DownloadColumn(), TimeRemainingColumn()) as (_tell, update):
        yield update


@contextmanager
def bar(
    console: Console, *columns: ProgressColumn, first: str = ""
) -> Iterator[tuple[Callable[[str], None], Callable[[str, int, int], None]]]:
    """A bar with columns and what is being done, `first` to begin with.

    Yields how to tell a line above it, and a step: name, done, all.
    """
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(
        BarColumn(), *columns, TextColumn("{task.description}"), console=console
    ) as shown:
        task = shown.add_task(first, total=None)

        def update(name: str, done: int, total: int) -> None:
            shown.update(task, description=name, completed=done, total=total)

        yield lambda line: shown.console.print(line, markup=False, highlight=False), update


def tenths(note: Callable[[str], None]) -> Callable[[str, int, int], None]:
    """A line every tenth."""
    last = -1

    def update(name: str, done: int, total: int) -> None:
        nonlocal last
        tenth = 10 * done // total if total else 10
        if tenth != last:
            last = tenth
            note(f"{10 * tenth:3d} % {name}")

    return update


def note(line: str) -> None:
    typer.echo(line, err=True)


def _end(_signal: int, _frame: Any) -> NoReturn:
    raise SystemExit(_TERMINATED)


@contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """One line on standard error and an exit code, in place of a traceback.

    SIGTERM ends the block as Ctrl-C does, so that temporary files are removed.
    """
    from kazeia_engine.errors import InvalidInput, KazeiaError, ModelError

    here = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _end) if here else None
    try:
        yield
    except (InvalidInput, ModelError) as err:
        refuse(str(err))
    except (KazeiaError, OSError, MemoryError) as err:
        refuse(str(err) or type(err).__name__, FAILED)
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    finally:
        if here and before is not None:  # None: not Python's to restore
            signal.signal(signal.SIGTERM, before)


def refuse(message: str, code: int = _BAD_INPUT) -> NoReturn:
    typer.echo("error: " + " ".join(message.split()), err=True)
    raise typer.Exit(code)
