"""The repository keeps its own promises: verbs, documents, contracts, versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from documents import documents

import kazeia_engine
from kazeia_server.cli import app
from kazeia_server.settings import PREFIX, Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
DOCUMENTS = documents()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=240,
    )


def code_lines() -> list[tuple[str, str]]:
    """Lines of the documents' code blocks and inline code, with the document's name."""
    found = []
    for document in DOCUMENTS:
        text = document.read_text("utf-8")
        blocks = re.findall(r"^```[^\n]*\n(.*?)^```|^ {4}(\S[^\n]*)$", text, re.M | re.S)
        spans = re.findall(r"`([^`\n]+)`", text)
        lines = [line for block in blocks for part in block for line in part.splitlines()]
        found += [(document.name, line.strip()) for line in (*lines, *spans)]
    return found


# ---- make ------------------------------------------------------------------


def verbs() -> dict[str, str]:
    """Verb -> description, as `make` prints them."""
    done = run("make", "--no-print-directory")
    assert done.returncode == 0, done.stderr
    return dict(line.split(None, 1) for line in done.stdout.splitlines())


def test_make_alone_lists_every_verb() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    declared = re.search(r"^\.PHONY: (.*)$", makefile, re.M)
    assert declared is not None
    assert set(declared[1].split()) == set(verbs())


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_every_verb_has_a_recipe(verb: str) -> None:
    done = run("make", "-n", "-B", verb)  # -B: as if nothing had been built yet
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "Nothing to be done" not in done.stdout


def test_documents_name_only_verbs_that_exist() -> None:
    named = [
        (doc, verb)
        for doc, line in code_lines()
        for verb in re.findall(r"(?:^|; |&& )make ([a-z][a-z0-9-]*)", line)
    ]
    assert {"run", "test"} <= {verb for _, verb in named}
    assert [n for n in named if n[1] not in verbs()] == []


# ---- the command line --------------------------------------------------------


def commands() -> dict[str, set[str]]:
    """Command -> its options."""
    group = typer.main.get_command(app)
    context = typer.Context(group)
    found = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found[name] = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    return found


def test_documents_name_only_commands_and_options_that_exist() -> None:
    known = commands()
    checked = 0
    for document, line in code_lines():
        match = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*kazeia ([a-z]+)(.*)", line)
        if match is None:
            continue
        name, rest = match.groups()
        assert name in known, f"{document}: {line}"
        rest = re.sub(r"\"[^\"]*\"|'[^']*'|#.*", "", rest)
        options = re.findall(r"(?<=\s)(--?[a-z][a-z0-9-]*)", rest)
        unknown = [o for o in options if o not in known[name] | {"--help"}]
        assert not unknown, f"{document}: {line}: {unknown}"
        checked += 1
    assert checked >= 8


def test_the_page_on_use_names_every_command() -> None:
    text = (ROOT / "docs" / "use.md").read_text("utf-8")
    assert [c for c in commands() if f"kazeia {c}" not in text] == []


# ---- settings ------------------------------------------------------------------


def test_operations_documents_exactly_the_settings() -> None:
    text = (ROOT / "docs" / "operation.md").read_text("utf-8")
    table = dict(re.findall(rf"^\| `({PREFIX}[A-Z_]+)` \| (\S+) \|", text, re.M))
    assert table == {
        PREFIX + n.upper(): written(f.default) for n, f in Settings.model_fields.items()
    }


def written(default: object) -> str:
    """A default as the table shows it."""
    if isinstance(default, bool):
        return str(int(default))
    return "none" if default in (None, "", ()) else str(default)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_documents_name_only_settings_that_exist(document: Path) -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    named = set(re.findall(rf"\b{PREFIX}[A-Z_]*[A-Z]\b", document.read_text("utf-8")))
    assert named <= known


# ---- contracts and gates -----------------------------------------------------------


SOURCES = ("engine_native/python", "server", "clients/python")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the Python sources and the configuration, to plant violations in."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for source in (
        "engine_native/python/kazeia_engine",
        "server/kazeia_server",
        "clients/python/kazeia_client",
        "clients/python/examples",
    ):
        shutil.copytree(
            ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(tree / part) for part in SOURCES)
    return run(BIN / "lint-imports", "--no-cache", cwd=tree, PYTHONPATH=path)


def plant(file: Path, line: str) -> None:
    file.write_text(file.read_text("utf-8") + f"\n{line}\n", "utf-8")


def test_import_contracts_hold(tree: Path) -> None:
    done = lint_imports(tree)
    assert done.returncode == 0, done.stdout
    assert "9 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        (
            "engine_native/python/kazeia_engine/prompt.py",
            "import kazeia_server.settings",
            "The engine knows nothing of the server BROKEN",
        ),
        (
            "engine_native/python/kazeia_engine/stream.py",
            "def f() -> None:\n    import kazeia_engine.tools.convert",
            "The engine stands on what lies below, and on no tool BROKEN",
        ),
        (
            "server/kazeia_server/voices/engine.py",
            "from kazeia_engine.tools.synth import synth",
            "Only kazeia_server.cli imports the engine's tools BROKEN",
        ),
        (
            "server/kazeia_server/doors/http.py",
            "from kazeia_engine import Model",
            "Only kazeia_server.voices.engine imports the engine BROKEN",
        ),
        (
            "server/kazeia_server/synthesis/speaker.py",
            "from kazeia_server.doors.http import read_json",
            "A request goes from a door to synthesis to a voice BROKEN",
        ),
        (
            "server/kazeia_server/voices/load.py",
            "from kazeia_server.synthesis.request import SynthesisRequest",
            "A request goes from a door to synthesis to a voice BROKEN",
        ),
        (
            "server/kazeia_server/doors/openai/routes.py",
            "from kazeia_server.doors.elevenlabs.messages import speed_of",
            "No door imports another BROKEN",
        ),
        (
            "clients/python/kazeia_client/address.py",
            "from kazeia_server.settings import PREFIX",
            "The client imports nothing of the engine or the server BROKEN",
        ),
        (
            "clients/python/kazeia_client/speech.py",
            "def f() -> None:\n    import kazeia_engine",
            "The client imports nothing of the engine or the server BROKEN",
        ),
        (
            "server/kazeia_server/synthesis/speaker.py",
            "from kazeia_client import Client",
            "Only the command line imports the client BROKEN",
        ),
        (
            "clients/python/kazeia_client/playback.py",
            "def f() -> None:\n    from kazeia_client.speech import Speech",
            "No package imports in circles BROKEN",
        ),
        (
            "server/kazeia_server/settings.py",
            "from kazeia_server.ops.auth import is_public",
            "No package imports in circles BROKEN",
        ),
        (
            "engine_native/python/kazeia_engine/errors.py",
            "from kazeia_engine.model import Model",
            "No package imports in circles BROKEN",
        ),
        (
            "server/kazeia_server/cli.py",
            "def f() -> None:\n    import kazeia_engine.types",
            "Only kazeia_server.voices.engine imports the engine BROKEN",
        ),
    ],
)
def test_a_planted_import_breaks_its_contract(
    tree: Path, file: str, line: str, contract: str
) -> None:
    plant(tree / file, line)
    done = lint_imports(tree)
    assert done.returncode == 1
    assert contract in done.stdout


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("from . import errors", "TID252"),
        ("print(1)", "T201"),
        ("x = 1  # noqa", "PGH004"),
        ("def f(a=[]): return a", "B006"),
        (f"y = '{'x' * 100}'", "E501"),
    ],
)
def test_a_planted_line_breaks_its_rule(tree: Path, line: str, rule: str) -> None:
    file = tree / "engine_native/python/kazeia_engine/prompt.py"
    plant(file, line)
    done = run(BIN / "ruff", "check", "--no-cache", "--output-format=concise", file, cwd=tree)
    assert done.returncode == 1
    assert rule in done.stdout


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("engine_native/python/kazeia_engine/tools/machine.py", "kazeia_engine.tools.machine"),
        ("clients/python/kazeia_client/address.py", "kazeia_client.address"),
        ("clients/python/examples/save_while_playing.py", "save_while_playing"),
    ],
)
def test_an_untyped_function_breaks_the_type_check(tree: Path, file: str, module: str) -> None:
    plant(tree / file, "def f(a): return a")
    done = run(BIN / "mypy", "--cache-dir", os.devnull, "-m", module, cwd=tree)
    assert done.returncode == 1
    assert "Function is missing a type annotation" in done.stdout


# ---- versions ------------------------------------------------------------------------


def test_one_version_everywhere() -> None:
    version = PROJECT["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = re.search(r"^## (\d+\.\d+\.\d+)", changelog, re.M)
    cmake = (ROOT / "engine_native/CMakeLists.txt").read_text("utf-8")
    project = re.search(r"project\(kazeia VERSION (\S+)", cmake)
    assert newest is not None
    assert project is not None
    assert newest[1] == project[1] == kazeia_engine.__version__ == version


def test_ggml_is_pinned_once() -> None:
    build = [r for r in PROJECT["build-system"]["requires"] if r.startswith("llama")]
    runtime = [r for r in PROJECT["project"]["dependencies"] if r.startswith("llama")]
    assert build == runtime
    assert re.fullmatch(r"llama-cpp-python==\d+\.\d+\.\d+", build[0])
    assert build[0] in run("make", "-n", "-W", "pyproject.toml", "build").stdout


def test_ci_runs_the_documented_commands() -> None:
    script = (ROOT / ".ci/run").read_text("utf-8")
    called = set(
        re.findall(r"[a-z-]+", " ".join(re.findall(r"^(?:retry )?make (.*)$", script, re.M)))
    )
    assert {"install", "lint", "types", "asan", "tsan", "test"} <= called
    assert called <= set(verbs())
    assert run("bash", "-n", ROOT / ".ci/run").returncode == 0
    assert os.access(ROOT / ".ci/run", os.X_OK)


# The folders of the engine from the ground up: each may include itself and what lies before its
# line, folders of one line not each other.
FLOORS = (
    ("runtime",),
    ("weights",),
    ("nn/kernels",),
    ("nn",),
    ("nn/lm", "nn/conv"),
    ("model/lm", "model/codec"),
    ("model",),
    ("engine",),
)
FLOOR = {folder: floor for floor, folders in enumerate(FLOORS) for folder in folders}


def folder_of(path: str) -> str:
    """The folder of FLOORS that a source lies in, by its path within src; engine/ is one."""
    return next(p for p in map(str, Path(path).parents) if p in FLOOR)


def includes_upwards(path: str, text: str) -> list[str]:
    """Includes of an engine source that reach a folder beside or above its own."""
    own = folder_of(path)
    found = re.findall(r'^#include "(\w+/.+)"', text, re.MULTILINE)
    return [f for f in found if folder_of(f) != own and FLOOR[folder_of(f)] >= FLOOR[own]]


def test_engine_folders_include_downwards_only() -> None:
    root = ROOT / "engine_native" / "src"
    sources = [str(p.relative_to(root)) for p in root.rglob("*") if p.suffix in (".h", ".cpp")]
    assert {folder_of(path) for path in sources} == set(FLOOR)
    for path in sources:
        assert includes_upwards(path, (root / path).read_text("utf-8")) == [], path


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("nn/kernels/float_avx2.cpp", "nn/panels.h"),
        ("nn/matrix.h", "nn/conv/convolution.h"),
        ("nn/lm/lm.h", "nn/conv/convolution.h"),
        ("model/codec/codec.h", "model/model.h"),
        ("model/codec/codec.h", "model/lm/talker.h"),
        ("runtime/team.h", "engine/engine.h"),
    ],
)
def test_a_planted_include_is_found(path: str, wrong: str) -> None:
    planted = f'#include <map>\n#include "runtime/status.h"\n#include "{wrong}"\n'
    assert includes_upwards(path, planted) == [wrong]


def test_measurements_name_their_machine() -> None:
    text = (ROOT / "engine_native" / "PERF.md").read_text("utf-8")
    for word in ("**Machine**", "RTF", "first audio", "RSS"):
        assert word in text


def test_make_notices_what_was_uninstalled(tmp_path: Path) -> None:
    """Its marks of what has been built go with the packages that they stand for."""
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    for name in ("llama_cpp", "kazeia_engine"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
    marks = [tmp_path / "venv" / name for name in (".kazeia-native", ".kazeia-build")]
    for mark in marks:
        mark.touch()
    run("make", "help", f"VIRTUAL_ENV={tmp_path / 'venv'}", cwd=ROOT)
    assert [mark.exists() for mark in marks] == [True, True]
    (packages / "llama_cpp/__init__.py").unlink()
    run("make", "help", f"VIRTUAL_ENV={tmp_path / 'venv'}", cwd=ROOT)
    assert [mark.exists() for mark in marks] == [False, True]
