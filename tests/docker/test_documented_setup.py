"""What docker/README.md tells to type agrees with the files beside it, in an order that works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from deploy_files import DOCKER, ROOT, run
from documents import SHELL, blocks_of
from shell import commands_of

import kazeia_server
from kazeia_server.settings import load_settings

PAGE = (DOCKER / "README.md").read_text("utf-8")
IMAGE = f"kazeia:{kazeia_server.__version__}"


def section(title: str) -> list[str]:
    """The commands below a heading, up to the next one of its level."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found is not None, title
    blocks = blocks_of("docker/README.md", found[1])
    return [c for block in blocks if block.language in SHELL for c in commands_of(block.text)]


def place(commands: list[str], start: str) -> int:
    """Where the first command that begins so stands."""
    return next(n for n, command in enumerate(commands) if command.startswith(start))


# ---- the image ---------------------------------------------------------------------------


def image_names(commands: list[str]) -> list[str]:
    words = [word for c in commands if c.startswith("docker ") for word in shlex.split(c)]
    return [w for w in words if re.fullmatch(r"(?:REGISTRY/)?kazeia(?::\S*)?", w)]


def test_one_name_for_the_image() -> None:
    """Two names would be two images, of which one cannot be found or is an old one."""
    named = image_names(section("The image"))
    assert len(named) >= 7
    assert {name.removeprefix("REGISTRY/") for name in named} == {IMAGE}
    for file in (DOCKER / "compose.yaml", *(DOCKER / "kubernetes").glob("*.yaml")):
        named = re.findall(r"^ *image: (\S+)", file.read_text("utf-8"), re.M)
        assert named or file.name == "claim.yaml"
        assert set(named) <= {IMAGE}, file
    built = re.findall(r"-t (kazeia\S*)", (DOCKER / "Dockerfile").read_text("utf-8"))
    assert built == [IMAGE]
    assert image_names(["docker run --rm kazeia", "docker build -t kazeia:1 ."]) == [
        "kazeia",
        "kazeia:1",
    ]


@pytest.mark.parametrize("title", ["The image", "Compose"])
def test_the_folder_of_models_is_made_before_docker_makes_it_as_root(title: str) -> None:
    commands = section(title)
    users = [n for n, c in enumerate(commands) if "$PWD/models" in c or "docker compose" in c]
    assert place(commands, "mkdir -p models") < users[0]


def test_the_model_is_made_readable_before_it_is_served() -> None:
    commands = section("The image")
    served = [n for n, c in enumerate(commands) if "KZTTS_MODEL=/models/custom" in c]
    made = [
        n for n, c in enumerate(commands) if f"{IMAGE} convert /models/raw -o /models/custom" in c
    ]
    assert made[0] < place(commands, "chmod -R a+rX models") < served[0]


# ---- compose -----------------------------------------------------------------------------


def test_the_table_has_the_variables_of_compose() -> None:
    used = set(re.findall(r"\$\{(\w+)", (DOCKER / "compose.yaml").read_text("utf-8")))
    text = PAGE.partition("\n## Compose\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", text, re.M)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == used
    proxies = PAGE.partition("\n## Proxies\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"KZTTS_\w+", proxies)) <= used
    assert {"WYOMING_ADDRESS", "KZTTS_WYOMING_PORT"} <= used


# ---- Kubernetes --------------------------------------------------------------------------


def test_manifests_are_applied_in_an_order_that_works() -> None:
    commands = section("Kubernetes")
    secret = place(commands, "kubectl create secret generic kazeia --from-literal=api-keys=")
    claim = place(commands, "kubectl apply -f docker/kubernetes/claim.yaml")
    job, server = (
        next(n for n, c in enumerate(commands) if f"kubernetes/{name}.yaml | kubectl apply" in c)
        for name in ("model", "kazeia")
    )
    done = place(commands, "kubectl wait --for=condition=complete")
    assert max(secret, claim) < job < done < server
    waited_for = yaml.safe_load((DOCKER / "kubernetes/model.yaml").read_text("utf-8"))
    assert f"job/{waited_for['metadata']['name']}" in commands[done].split()


def test_the_registry_is_put_in_front_of_every_image() -> None:
    commands = [c for c in section("Kubernetes") if c.startswith("sed ")]
    assert len(commands) == 2
    for command in commands:
        edit, _, apply = command.rpartition(" | ")
        assert apply == "kubectl apply -f -"
        done = run("bash", "-c", edit)
        assert done.returncode == 0, done.stderr
        for item in yaml.safe_load_all(done.stdout):
            pod = item["spec"].get("template", {}).get("spec", {})
            containers = pod.get("initContainers", []) + pod.get("containers", [])
            assert {c["image"] for c in containers} <= {f"REGISTRY/{IMAGE}"}
        assert f"image: REGISTRY/{IMAGE}" in done.stdout


# ---- systemd -----------------------------------------------------------------------------


def test_what_systemd_is_given_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = section("systemd")
    written = place(commands, "printf ")
    assert place(commands, "sudo install -m 600 /dev/null /etc/kazeia.env") < written
    line, _, file = commands[written].partition(" | ")
    assert file == "sudo tee /etc/kazeia.env"
    lines = run("bash", "-c", line).stdout.splitlines()
    for name, _, value in (entry.partition("=") for entry in lines):
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.host == "0.0.0.0"
    assert settings.api_keys == ("KEY",)  # never open to other machines without one
    # A umask of root's must not keep the unit's user out of the program and the model.
    readable = shlex.split(commands[place(commands, "sudo chmod -R a+rX ")])[4:]
    unit = (DOCKER / "systemd" / "kazeia.service").read_text("utf-8")
    program = re.search(r"^ExecStart=(\S+)", unit, re.M)
    assert program is not None
    assert settings.model is not None
    for path in (Path(program[1]), settings.model):
        assert any(path.is_relative_to(folder) for folder in readable), path


# ---- wheels ------------------------------------------------------------------------------


def from_an_index(commands: list[str]) -> list[str]:
    """Commands that let pip look for Kazeia itself elsewhere than in the files that were made."""
    installs = [c for c in commands if "pip install " in c]
    return [c for c in installs if any(re.match(r"kazeia\b(?!.*\.whl)", w) for w in c.split())]


def test_wheels_are_named_as_files_and_an_upgrade_is_forced() -> None:
    commands = [c for b in blocks_of("docker/README.md", PAGE) for c in commands_of(b.text)]
    assert from_an_index(commands) == []
    assert from_an_index(["pip install --find-links dist kazeia", "pip install 'kazeia'"]) != []
    upgrade = section("Upgrading")
    new, forced = (
        place(upgrade, f"pip install {options}dist/*.whl")
        for options in ("", "--force-reinstall --no-deps ")
    )
    assert new < forced
    assert "rm -f dist/kazeia-*.whl" in (ROOT / "Makefile").read_text("utf-8")  # of other versions
