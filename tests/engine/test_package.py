"""The public surface of the package."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys
from importlib import import_module, resources
from pathlib import Path

import pytest

import kazeia_engine
from kazeia_engine import errors

MODULES = sorted(m.name for m in pkgutil.walk_packages(kazeia_engine.__path__, "kazeia_engine."))


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.strip()


def test_all_is_the_public_surface() -> None:
    assert kazeia_engine.__all__ == sorted(kazeia_engine.__all__, key=sort_key)
    for name in kazeia_engine.__all__:
        assert getattr(kazeia_engine, name) is not None
    exported = {n for n in kazeia_engine.__all__ if n != "__version__"}
    own = {
        name
        for name, value in vars(kazeia_engine).items()
        if inspect.isclass(value) and value.__module__.startswith("kazeia_engine")
    }
    assert own <= exported
    assert exported <= set(dir(kazeia_engine))


def sort_key(name: str) -> tuple[bool, str]:
    """Classes before dunder names, each in order."""
    return (name.startswith("_"), name)


@pytest.mark.parametrize("name", MODULES)
def test_modules_export_what_they_have(name: str) -> None:
    module = import_module(name)
    assert module.__doc__, "a module says what it is for"
    exported = set(getattr(module, "__all__", ()))
    assert exported <= set(dir(module))
    defined = {
        n
        for n, value in vars(module).items()
        if not n.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }
    # Commands are reached through `app`.
    public = set() if name == "kazeia_engine.tools.cli" else defined
    assert public <= exported, f"public but not in __all__: {sorted(public - exported)}"


def test_every_error_is_exported() -> None:
    for name in errors.__all__:
        assert getattr(kazeia_engine, name) is getattr(errors, name)
        assert issubclass(getattr(errors, name), kazeia_engine.KazeiaError)


def test_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = kazeia_engine.nothing_here  # type: ignore[attr-defined]


def test_importing_loads_no_native_library() -> None:
    code = "import sys, kazeia_engine; print({'numpy', 'llama_cpp', 'gguf'} & set(sys.modules))"
    assert run_python(code) == "set()"


def test_speech_needs_no_tools(golden_models: dict[str, Path]) -> None:
    """Names that are imported when they are used, too: no import contract sees those."""
    code = (
        "import sys, kazeia_engine\n"
        "for name in kazeia_engine.__all__: getattr(kazeia_engine, name)\n"
        f"with kazeia_engine.Model.load({str(golden_models['base'])!r}) as model:\n"
        "    model.synthesize('a', max_frames=2)\n"
        "tools = {'gguf', 'huggingface_hub', 'typer', 'rich', 'kazeia_engine.tools'}\n"
        "print(tools & set(sys.modules))"
    )
    assert run_python(code) == "set()"


def test_lazy_names_are_the_real_ones() -> None:
    code = (
        "from kazeia_engine import Model, Tokenizer; print(Model.__module__, Tokenizer.__module__)"
    )
    assert run_python(code) == "kazeia_engine.model kazeia_engine.tokenizer"


def test_nothing_is_printed_or_logged_by_default(golden_models: dict[str, Path]) -> None:
    code = (
        "from kazeia_engine import Model\n"
        f"with Model.load({str(golden_models['base'])!r}) as m: m.synthesize('a', max_frames=2)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_package_is_typed() -> None:
    assert resources.files("kazeia_engine").joinpath("py.typed").is_file()
