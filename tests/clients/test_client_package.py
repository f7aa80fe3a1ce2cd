"""The client as a package: its surface, its versions, and the light distribution alone."""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
import subprocess
import sys
import zipfile
from importlib import import_module, resources
from pathlib import Path

import pytest
from fake_voice import FakeVoice
from live import serving

import kazeia_client
from kazeia_client import errors

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
LIGHT = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text("utf-8"))["project"]
MAIN = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MODULES = sorted(m.name for m in pkgutil.iter_modules(kazeia_client.__path__) if m.name[0] != "_")


@pytest.mark.parametrize("name", MODULES)
def test_modules_export_what_they_have(name: str) -> None:
    module = import_module(f"kazeia_client.{name}")
    assert module.__doc__
    defined = {
        n
        for n, value in vars(module).items()
        if not n.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }
    assert defined <= set(module.__all__) <= set(dir(module))


def test_every_error_is_exported_and_belongs_to_the_family() -> None:
    classes = [name for name in errors.__all__ if name[0].isupper()]
    for name in classes:
        assert getattr(kazeia_client, name) is getattr(errors, name)
        assert issubclass(getattr(errors, name), kazeia_client.KazeiaError)
        assert name in (errors.__doc__ or "")
    assert len(classes) == 20


def test_the_synchronous_client_can_do_what_the_other_can() -> None:
    pairs = [
        (kazeia_client.Client, kazeia_client.AsyncClient),
        (kazeia_client.SpeechStream, kazeia_client.AsyncSpeechStream),
        (kazeia_client.Session, kazeia_client.AsyncSession),
        (kazeia_client.Utterance, kazeia_client.AsyncUtterance),
    ]
    for sync, asynchronous in pairs:
        have, want = (
            {n for n in vars(kind) if not n.startswith("_")} for kind in (sync, asynchronous)
        )
        assert want - have <= {"connect"}, sync
        for name in have & want:
            if inspect.isfunction(vars(sync)[name]):
                assert list(inspect.signature(getattr(sync, name)).parameters) == list(
                    inspect.signature(getattr(asynchronous, name)).parameters
                )


def test_it_is_typed_and_imports_neither_engine_nor_server() -> None:
    assert resources.files("kazeia_client").joinpath("py.typed").is_file()
    code = (
        "import sys, kazeia_client, kazeia_client.cli;"
        "print([m for m in sys.modules if m.partition('.')[0] in"
        " ('kazeia_engine', 'kazeia_server', 'numpy', 'llama_cpp', 'sounddevice')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_one_version_and_the_same_requirements() -> None:
    assert LIGHT["version"] == kazeia_client.__version__ == MAIN["version"]
    assert LIGHT["requires-python"] == MAIN["requires-python"]
    assert LIGHT["dependencies"] == ["httpx>=0.27,<1", "websockets>=15"]
    assert set(LIGHT["dependencies"]) <= set(MAIN["dependencies"])
    assert LIGHT["optional-dependencies"]["play"] == MAIN["optional-dependencies"]["client"]


SPEAK = """
import asyncio, importlib.util, json, sys
from kazeia_client import AsyncClient, Client, __file__ as where

async def main():
    async with AsyncClient() as client, client.session() as session:
        return len(await (await session.speak("Hello.")).read())

with Client() as client:
    whole = len(client.synthesize("Hello.").pcm)
    streamed = len(client.stream(iter(["Hel", "lo."])).read())
others = [n for n in ("kazeia_server", "kazeia_engine", "numpy") if importlib.util.find_spec(n)]
print(json.dumps([whole, streamed, asyncio.run(main()), others, where]))
"""


def test_the_wheel_alone_speaks_from_an_environment_of_its_own(tmp_path: Path) -> None:
    """Built and installed as a user would, with what it needs from the package index."""
    wheels, fresh = tmp_path / "wheels", tmp_path / "fresh"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "-q", "--no-deps", "-w", str(wheels), str(ROOT / "clients/python"))
    (wheel,) = wheels.iterdir()
    assert wheel.name == f"kazeia_client-{LIGHT['version']}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert all(n.startswith(("kazeia_client/", "kazeia_client-")) for n in names)
        assert "kazeia_client/py.typed" in names
        assert any(n.endswith("licenses/LICENSE") for n in names)
    run(sys.executable, "-m", "venv", str(fresh))
    run(*pip, "--python", str(fresh), "install", "-q", str(wheel))
    listed = run(*pip, "--python", str(fresh), "list", "--format=json")
    installed = {package["name"] for package in json.loads(listed)}
    assert {"kazeia-client", "httpx", "websockets"} <= installed
    # What these two need in turn, and what every environment has.
    assert installed <= {
        *("kazeia-client", "httpx", "httpcore", "h11", "anyio", "idna", "certifi", "websockets"),
        *("sniffio", "exceptiongroup", "typing_extensions", "pip", "setuptools"),
    }
    with serving(FakeVoice(n_chunks=3)) as live:
        answer = run(str(fresh / "bin/python"), "-I", "-c", SPEAK, KAZEIA_URL=live.url)
        *figures, others, where = json.loads(answer)
        assert figures == [3 * 1920 * 2] * 3
        assert others == []
        assert where.startswith(str(fresh))
        out = tmp_path / "out.wav"
        run(str(fresh / "bin/kazeia-client"), "speak", "Hi.", "-o", str(out), KAZEIA_URL=live.url)
        assert out.stat().st_size == 44 + 3 * 1920 * 2


def run(*command: str, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**clean, **env}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
