"""A folder in which the commands of a document are run, as a reader would: top to bottom."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import yaml
from documents import ROOT, SHELL, Block
from plan import CHANGES_THE_MACHINE, NEEDS_SERVER, NOT_RUN, NOT_RUN_LANGUAGES, REPLACEMENTS
from shell import Command, outside, parsed, without_prompt

TIMEOUT_S = 600  # a busy machine is slow
GRACE_S = 5  # for processes that are about to end
COMMANDS = ("kazeia", "curl", "make", "pip", "python", "docker", "sudo", "apt", "pytest", "export")
INHERITED = ("KZTTS_", "XDG_", "HF_", "PIP_")  # settings of the developer's that are not
MARK = "KAZEIA_DOCUMENT"  # in the environment of every process of a sandbox

# A server is started in the background and waited for; it serves until the document's next one.
_PRELUDE = r"""
set -euo pipefail
serve() {
    if [ -f server.pid ]; then
        kill "$(cat server.pid)"
        tail --pid="$(cat server.pid)" -f /dev/null
    fi
    setsid "$@" > server.log 2>&1 &
    echo $! > server.pid
    for _ in $(seq 1800); do
        curl -s "http://127.0.0.1:$KZTTS_PORT/readyz" > /dev/null 2>&1 && return 0
        kill -0 "$(cat server.pid)" || break
        sleep 0.1
    done
    cat server.log >&2
    return 1
}
trap 'echo "failed: $BASH_COMMAND" >&2' ERR
"""


class Failed(AssertionError):
    """A block of a document does not do what the document says."""


def left_out(text: str) -> bool:
    """Whether the plan leaves a command or block out."""
    return any(text.startswith(start) for start in NOT_RUN)


# As a word or a path's last part, wherever it stands: what a shell makes of it is not guessed.
_DANGER = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, CHANGES_THE_MACHINE))})(?![\w./-])")


def refuse_danger(block: Block, text: str) -> None:
    """Raises Failed where code would change the machine, or names a path out of the folder."""
    found = _DANGER.search(text)
    if found is not None:
        raise Failed(
            f"{block.place}: {found[1]} is never run here: leave it out in tests/docs/plan.py"
        )
    path = outside(text)
    if path:
        raise Failed(f"{block.place}: {path} is outside of the folder")


def _refuse(block: Block, command: Command) -> None:
    """Raises Failed where a command may not be run, or could fail unnoticed."""
    refuse_danger(block, command.text)
    if command.refused:
        raise Failed(
            f"{block.place}: {command.refused}: a failure in it would go unnoticed: write single "
            f"commands, or leave it out in tests/docs/plan.py: {command.text}"
        )


class Sandbox:
    """A copy of the tree with models, a home of its own, and ports of its own."""

    def __init__(self, folder: Path, models: Path) -> None:
        self.folder = folder / "kazeia"
        ignored = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "models")
        shutil.copytree(ROOT, self.folder, ignore=ignored)
        shutil.copytree(models, self.folder / "models")
        home = folder / "home"
        home.mkdir()
        (folder / "tmp").mkdir()
        self._mark = str(folder)
        (home / ".curlrc").write_text("fail-with-body\nshow-error\n")  # an HTTP error is a failure
        self.port, self._wyoming_port = _free_port(), _free_port()
        bin_folder = Path(sys.executable).parent
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(INHERITED)},
            MARK: self._mark,
            "HOME": str(home),
            "TMPDIR": str(folder / "tmp"),
            **{f"XDG_{k}_HOME": str(home / k) for k in ("CACHE", "CONFIG", "DATA", "STATE")},
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "KZTTS_PORT": str(self.port),
            "KZTTS_WYOMING_PORT": str(self._wyoming_port),
            "KZTTS_MAX_AUDIO_S": "1",  # tiny models never end by themselves
            "KAZEIA_URL": f"http://127.0.0.1:{self.port}",  # where the Python client looks
            "HF_HUB_OFFLINE": "1",
            "OMP_WAIT_POLICY": "passive",
            "PIP_DRY_RUN": "1",  # a test changes no environment but its own
            "PIP_NO_INDEX": "1",
            "CPATH": str(ROOT / "engine_native" / "include"),
        }

    def close(self) -> None:
        """End all that the document started.  Raises Failed where something goes on."""
        self._end(self.processes)
        if self.processes():
            raise Failed(f"processes of a document are left: {self.processes()}")

    def processes(self) -> list[int]:
        """The processes that run in this sandbox, in whatever group or session."""
        wanted = f"{MARK}={self._mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):  # it has ended, or is another user's
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def _strays(self) -> list[int]:
        """Processes that are not the server's, whose session is its own."""
        file = self.folder / "server.pid"
        server = int(file.read_text()) if file.exists() else None
        found = []
        for pid in self.processes():
            with suppress(ProcessLookupError):
                if os.getsid(pid) != server:
                    found.append(pid)
        return found

    @staticmethod
    def _end(which: Callable[[], list[int]]) -> None:
        """Kill processes until there are none; they may start others meanwhile."""
        patience = time.monotonic() + GRACE_S
        while (pids := which()) and time.monotonic() < patience:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def run(self, block: Block) -> list[str]:
        """Run a block.  Returns what the plan leaves out: commands of it, or all of it.

        Raises Failed when the block fails, or when nobody has said how to run it.
        """
        if Path(block.file).name != block.file:
            raise Failed(f"{block.place}: {block.file}: expected a name without a folder")
        if block.file:
            (self.folder / block.file).write_text(self._replaced(block.text), "utf-8")
        if block.language in SHELL:
            return self._shell(block)
        if left_out(block.text):
            return [block.text]
        if block.language == "python":
            refuse_danger(block, block.text)
            self._serve_for(block)
            self._check(block, [sys.executable, "-"], self._replaced(block.text))
        elif block.language == "c":
            self._check(
                block,
                ["cc", "-Wall", "-Werror", "-fsyntax-only", "-xc", "-"],
                _c_program(block.text),
            )
        elif block.language == "yaml":
            _read_yaml(block)
        elif block.language not in NOT_RUN_LANGUAGES:
            raise Failed(
                f"{block.place}: {block.language or 'no language'}: say in tests/docs how to run "
                "such blocks, or why they are not run"
            )
        elif block.language == "text":
            _no_commands(block)
        return []

    def _shell(self, block: Block) -> list[str]:
        commands = parsed(block.text)
        skipped = [c.text for c in commands if left_out(c.text)]
        kept = [c for c in commands if not left_out(c.text)]
        for command in kept:
            _refuse(block, command)
        lines = [self._in_background(self._replaced(c.text)) for c in kept]
        if not lines:
            return skipped
        script = "\n".join(lines)
        if "serve kazeia serve" not in script:
            self._serve_for(block)
        self._check(block, ["bash", "-c", _PRELUDE + script])
        return skipped

    def _serve_for(self, block: Block) -> None:
        """Start a server where the block speaks with one and the document has started none."""
        needed = any(part in block.text for part in NEEDS_SERVER)
        if needed and not (self.folder / "server.pid").exists():
            start = "serve kazeia serve --model models/custom"
            self._check(block, ["bash", "-c", _PRELUDE + start])

    def _replaced(self, text: str) -> str:
        for replacement in REPLACEMENTS:
            run = replacement.run.format(port=self.port, wyoming=self._wyoming_port)
            text = text.replace(replacement.written, run)
        return text

    @staticmethod
    def _in_background(command: str) -> str:
        return command.replace("kazeia serve", "serve kazeia serve", 1)

    def _check(self, block: Block, command: list[str], text: str = "") -> None:
        output = self.folder / "output.txt"  # no pipe: a server left behind would hold it open
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            try:
                process.communicate(text.encode(), timeout=TIMEOUT_S)
                outcome = f"exit code {process.returncode}"
            except subprocess.TimeoutExpired:
                outcome = f"not done after {TIMEOUT_S} s"
            left = self._left_running()
            self._end(self._strays)
            process.wait()
        if process.returncode != 0:
            printed = output.read_text("utf-8", "replace")[-3000:]
            raise Failed(f"{block.place}: {outcome}\n{block.text}\n{printed}")
        if left:
            raise Failed(f"{block.place}: processes go on running: {', '.join(left)}\n{block.text}")

    def _left_running(self) -> list[str]:
        """The commands of strays that do not end by themselves."""
        patience = time.monotonic() + GRACE_S
        while self._strays() and time.monotonic() < patience:
            time.sleep(0.01)
        found = []
        for pid in self._strays():
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                found.append(line.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace"))
        return found


def _read_yaml(block: Block) -> None:
    try:
        yaml.safe_load(block.text)
    except yaml.YAMLError as error:
        raise Failed(f"{block.place}: not yaml: {error}") from None


def _no_commands(block: Block) -> None:
    for line in block.text.splitlines():
        words = without_prompt(line).split()
        if words and words[0] in COMMANDS:
            raise Failed(f"{block.place}: a command in a block that is not run: {line}")


def _c_program(text: str) -> str:
    """A whole program as it is; statements inside one."""
    if "#include" in text:
        return text
    return f'#include "kazeia.h"\nint main(void) {{\n{text}\nreturn 0;\n}}\n'


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
