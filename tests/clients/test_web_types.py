"""The type declarations of clients/web say what the module does; checked by TypeScript."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients" / "web"
PAGE = ROOT / "server" / "kazeia_server" / "web"

# What TypeScript's own library does not know: the audio thread.
WORKLET = """
declare const sampleRate: number;
declare class AudioWorkletProcessor { readonly port: MessagePort; }
declare function registerProcessor(name: string, processor: unknown): void;
"""
# `implemented` are the types of the code, by its comments; `declared` those of kazeia.d.ts.
AGREE = """
import * as implemented from "./implemented/kazeia.js";
import type * as declared from "./declared/kazeia.js";

type Made = "Utterance"; // no program makes one: its constructor is private
export const fits: Omit<typeof declared, Made> = implemented;
export const utterance = (made: implemented.Utterance): declared.Utterance => made;
export const all: Exclude<keyof typeof implemented, keyof typeof declared> extends never
  ? true : never = true;
"""
PROGRAM = """
import { Player, Recording, Speech, SpeechClient, SpeechError, type Stats } from "kazeia";

const speech = new Speech("https://tts.example.org/", { key: () => "secret", volume: 0.5 });
const recording = new Recording(24000);
speech.addEventListener("audio", ({ detail }) => recording.add(detail));
speech.addEventListener("underrun", ({ detail }) => console.log(detail.count + detail.gap));
speech.addEventListener("error", ({ detail }) => console.log(detail.code, detail.retryAfter));
export async function say(text: AsyncIterable<string>): Promise<Stats | null> {
  const { voices } = await speech.voices();
  const utterance = speech.speak(text, { voice: voices[0].id, language: "fr", seed: 1 });
  const live = speech.begin();
  const taken: boolean = live.write("words ");
  live.flush();
  live.end();
  try {
    return taken ? await utterance.finished : null;
  } catch (error) {
    if (error instanceof SpeechError) console.log(error.code, error.status);
    throw error;
  }
}
export const parts = [new Player({ volume: 1 }), SpeechClient, recording.wav().size];
"""


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The TypeScript compiler that package.json names."""
    if shutil.which("npm") is None:
        message = "THE TYPES OF THE WEB CLIENT ARE NOT TESTED: npm is not on the path"
        if os.environ.get("KAZEIA_REQUIRE_NPM") == "1":
            pytest.fail(message)
        pytest.skip(message)
    package = json.loads((CLIENT / "package.json").read_text("utf-8"))
    assert list(package["devDependencies"]) == ["typescript"]
    assert "dependencies" not in package
    folder = tmp_path_factory.mktemp("npm")
    wanted = f"typescript@{package['devDependencies']['typescript']}"
    options = ["--no-audit", "--no-fund", "--no-save", "--prefix", str(folder)]
    done = subprocess.run(
        ["npm", "install", *options, wanted], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return folder / "node_modules" / ".bin" / "tsc"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The code without its declarations, and the declarations without their code."""
    shutil.copytree(CLIENT / "kazeia", tmp_path / "implemented")
    (tmp_path / "implemented" / "kazeia.d.ts").unlink()
    (tmp_path / "declared").mkdir()
    shutil.copy(CLIENT / "kazeia" / "kazeia.d.ts", tmp_path / "declared")
    (tmp_path / "package.json").write_text('{"type": "module"}', "utf-8")
    (tmp_path / "worklet.d.ts").write_text(WORKLET, "utf-8")
    (tmp_path / "agree.ts").write_text(AGREE, "utf-8")
    options = {
        "target": "es2022",
        "module": "nodenext",
        "lib": ["es2022", "dom", "dom.iterable", "dom.asynciterable"],
        "types": [],
        "strict": True,
        "allowJs": True,
        "checkJs": True,
        "noEmit": True,
        "noImplicitReturns": True,
        "skipDefaultLibCheck": True,
    }
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": options}), "utf-8")
    return tmp_path


def complaints(compiler: Path, project: Path) -> list[str]:
    done = subprocess.run(
        [compiler, "--pretty", "false", "-p", project],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=project,
    )
    lines = done.stdout.splitlines()
    assert bool(lines) == (done.returncode != 0), done.stdout + done.stderr
    return lines


def test_code_and_declarations_agree(compiler: Path, project: Path) -> None:
    assert complaints(compiler, project) == []


@pytest.mark.parametrize(
    ("planted", "in_place_of", "complaint"),
    [
        ("  flushes(): void;", "  flush(): void;", "'flushes' is missing"),
        ("  write(text: string): number;", "  write(text: string): boolean;", "not assignable"),
        ("export declare class Recorder {", "export declare class Recording {", "'Recorder'"),
    ],
)
def test_a_planted_difference_is_found(
    compiler: Path, project: Path, planted: str, in_place_of: str, complaint: str
) -> None:
    file = project / "declared" / "kazeia.d.ts"
    text = file.read_text("utf-8")
    assert in_place_of in text
    file.write_text(text.replace(in_place_of, planted), "utf-8")
    assert complaint in " ".join(complaints(compiler, project))


def test_an_export_without_a_declaration_is_found(compiler: Path, project: Path) -> None:
    file = project / "implemented" / "kazeia.js"
    file.write_text(file.read_text("utf-8") + "export const extra = 1;\n", "utf-8")
    assert "agree.ts" in " ".join(complaints(compiler, project))


def test_a_program_compiles_against_the_package(compiler: Path, project: Path) -> None:
    shutil.copytree(
        CLIENT,
        project / "node_modules" / "kazeia",
        ignore=shutil.ignore_patterns("example", "node_modules"),
    )
    (project / "program.ts").write_text(PROGRAM, "utf-8")
    assert complaints(compiler, project) == []
    wrong = 'import { Speech } from "kazeia";\nnew Speech("/").speak("a", { colour: 1 });\n'
    (project / "wrong.ts").write_text(wrong, "utf-8")
    found = complaints(compiler, project)
    assert len(found) == 1
    assert "'colour' does not exist" in found[0]


def test_the_readmes_script_compiles(compiler: Path, project: Path) -> None:
    shutil.copytree(CLIENT, project / "node_modules" / "kazeia")
    text = (CLIENT / "README.md").read_text("utf-8")
    (script,) = re.findall(r"^```js\n(.*?)^```", text, re.M | re.S)
    given = 'import { Speech } from "kazeia";\n'
    given += "async function* fetchTokensOfAModel() { yield 'a'; }\n"
    (project / "readme.js").write_text(given + script, "utf-8")
    assert complaints(compiler, project) == []
    (project / "readme.js").write_text(given + script + "speech.speek('a');\n", "utf-8")
    assert "'speek' does not exist" in " ".join(complaints(compiler, project))


def test_the_readme_names_everything() -> None:
    """Exports, members, events and options of the declarations, in code of the README."""
    declarations = (CLIENT / "kazeia" / "kazeia.d.ts").read_text("utf-8")
    entry = (CLIENT / "kazeia" / "kazeia.js").read_text("utf-8")
    names = set(re.findall(r"\w+", " ".join(re.findall(r"export \{(.*?)\}", entry))))
    assert {"Speech", "Utterance", "SpeechError", "SpeechClient", "Player", "Recording"} == names
    bodies = re.findall(
        r"^export (?:declare class|interface) "
        r"(?:Speech|Utterance|SpeechOptions|SpeechEventMap|SpeechClient|Player|Recording) ?"
        r"(?:extends \w+ )?\{\n(.*?)^\}",
        declarations,
        re.M | re.S,
    )
    assert len(bodies) == 7
    for body in bodies:
        names |= set(re.findall(r"^  (?:readonly )?(\w+)[?(:]", body, re.M))
    names -= {"constructor", "private", "addEventListener", "removeEventListener"}
    assert len(names) > 40
    text = re.sub(r"```.*?```", "", (CLIENT / "README.md").read_text("utf-8"), flags=re.S)
    code = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))
    assert names - code == set()


def test_the_package_has_the_version_of_the_project() -> None:
    package = json.loads((CLIENT / "package.json").read_text("utf-8"))
    project = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert project is not None
    assert package["version"] == project[1]


def test_the_servers_page_fits_the_declarations(compiler: Path, project: Path) -> None:
    shutil.copytree(PAGE, project / "page", ignore=shutil.ignore_patterns("kazeia"))
    shutil.copytree(CLIENT / "kazeia", project / "page" / "kazeia")
    assert complaints(compiler, project) == []
