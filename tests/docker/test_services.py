"""compose.yaml, the Kubernetes manifests and the systemd unit, against schemas and the server."""

from __future__ import annotations

import copy
import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from compose_spec import ComposeSpecification
from deploy_files import BIN, DOCKER, ROOT, SETTINGS, last_stage, run, system_tool
from pydantic import BaseModel, ValidationError

import kazeia_server
from kazeia_engine.tools.pull import KNOWN_MODELS
from kazeia_server.app import create_app
from kazeia_server.cli import app
from kazeia_server.settings import Settings, load_settings

COMPOSE = DOCKER / "compose.yaml"
KUBERNETES = DOCKER / "kubernetes"
MANIFESTS = KUBERNETES / "kazeia.yaml"
UNIT = DOCKER / "systemd" / "kazeia.service"
ROUTES = set(create_app(Settings()).openapi()["paths"])
IMAGE = last_stage((DOCKER / "Dockerfile").read_text("utf-8"))


def seconds(text: str) -> float:
    """Seconds of "30s" or "10m"."""
    return float(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


# ---- compose -----------------------------------------------------------------------------


def unknown_keys(model: BaseModel, data: dict[str, Any]) -> list[str]:
    """Keys that the schema does not have: its models drop them silently."""
    fields = type(model).model_fields
    names = {field.alias or name: name for name, field in fields.items()}
    found = []
    for key, value in data.items():
        if key not in names and key not in fields:
            found.append(key)
            continue
        parsed = getattr(model, names.get(key, key))
        pairs = (
            [(parsed[k], v) for k, v in value.items() if k in parsed]
            if isinstance(parsed, dict) and isinstance(value, dict)
            else [(parsed, value)]
        )
        for part, source in pairs:
            if isinstance(part, BaseModel) and isinstance(source, dict):
                found += unknown_keys(part, source)
    return found


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text("utf-8"))
    return loaded


def test_compose_follows_the_schema(compose: dict[str, Any]) -> None:
    assert unknown_keys(ComposeSpecification.model_validate(compose), compose) == []


def test_the_compose_schema_refuses_what_it_does_not_know(compose: dict[str, Any]) -> None:
    planted = copy.deepcopy(compose)
    planted["services"]["kazeia"]["read_onli"] = True
    planted["services"]["kazeia"]["healthcheck"]["intervall"] = "3s"
    model = ComposeSpecification.model_validate(planted)
    assert unknown_keys(model, planted) == ["intervall", "read_onli"]
    planted["services"]["kazeia"]["ports"] = 8080
    with pytest.raises(ValidationError):
        ComposeSpecification.model_validate(planted)


def test_compose_agrees_with_image_and_settings(compose: dict[str, Any]) -> None:
    service = compose["services"]["kazeia"]
    assert (COMPOSE.parent / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    environment = service["environment"]
    assert set(environment) <= SETTINGS
    Settings(model=None, shutdown_timeout_s=int(environment["KZTTS_SHUTDOWN_TIMEOUT_S"]))
    limits = service["deploy"]["resources"]["limits"]
    assert environment["KZTTS_THREADS"] == limits["cpus"]
    drain = int(environment["KZTTS_SHUTDOWN_TIMEOUT_S"])
    assert seconds(service["stop_grace_period"]) > drain + 5
    inside = {port.rpartition(":")[2] for port in service["ports"]}
    assert inside == set(IMAGE["EXPOSE"][0].split())
    assert all(re.match(r"\$\{[A-Z]+_ADDRESS:-127\.0\.0\.1\}:\d+:", p) for p in service["ports"])
    check, image_check = service["healthcheck"], IMAGE["HEALTHCHECK"][0]
    assert check["test"] == ["CMD", *json.loads(image_check.partition("CMD ")[2])]
    for option in ("start_period", "start_interval", "interval", "timeout", "retries"):
        assert f"--{option.replace('_', '-')}={check[option]} " in image_check
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    (volume,) = service["volumes"]
    assert volume["target"] == IMAGE["VOLUME"][0]
    # The folder that `kazeia pull` fills, which git leaves alone, and Docker does not make as root.
    assert (COMPOSE.parent / volume["source"]).resolve() == ROOT / "models"
    assert "/models/" in (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert volume["bind"] == {"create_host_path": False}


# ---- Kubernetes --------------------------------------------------------------------------


def validate_manifests(*files: Path) -> subprocess.CompletedProcess[str]:
    return run(BIN / "kubernetes-validate", "--strict", *files)


def test_manifests_follow_the_schema() -> None:
    done = validate_manifests(*sorted(KUBERNETES.iterdir()))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    planted = tmp_path / "planted.yaml"
    text = MANIFESTS.read_text("utf-8")
    planted.write_text(text.replace("failureThreshold: 120", "failureTreshold: 120"), "utf-8")
    done = validate_manifests(planted)
    assert done.returncode != 0
    assert "failureTreshold" in done.stdout + done.stderr


@pytest.fixture(scope="module")
def manifests() -> dict[str, dict[str, Any]]:
    """Kind -> manifest."""
    files = [file.read_text("utf-8") for file in KUBERNETES.iterdir()]
    return {item["kind"]: item for text in files for item in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def pod(manifests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = manifests["Deployment"]["spec"]["template"]["spec"]
    return spec


def test_probes_ask_routes_that_exist(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    probes = {name: container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    for probe in probes.values():
        assert probe["httpGet"]["path"] in ROUTES
        assert probe["httpGet"]["port"] == "http"
    # A server that drains is alive, but not ready.
    assert probes["liveness"]["httpGet"]["path"] == "/health"
    assert probes["readiness"]["httpGet"]["path"] == "/readyz"
    assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= 300
    assert "/no-such-route" not in ROUTES


def test_manifests_agree_with_image_and_settings(
    manifests: dict[str, dict[str, Any]], pod: dict[str, Any]
) -> None:
    (container,) = pod["containers"]
    assert container["image"].rpartition(":")[2] == kazeia_server.__version__
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert set(environment) <= SETTINGS
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {str(port) for port in ports.values()} == set(IMAGE["EXPOSE"][0].split())
    for port in manifests["Service"]["spec"]["ports"]:
        assert port["targetPort"] in ports
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert manifests["Service"]["spec"]["selector"].items() <= labels.items()
    assert environment["KZTTS_THREADS"] == container["resources"]["limits"]["cpu"]
    waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = int(environment["KZTTS_SHUTDOWN_TIMEOUT_S"])
    assert pod["terminationGracePeriodSeconds"] > waits + drain + 5
    user, group = IMAGE["USER"][-1].split(":")
    assert pod["securityContext"]["runAsUser"] == int(user)
    assert pod["securityContext"]["runAsGroup"] == int(group)
    assert container["volumeMounts"][0]["mountPath"] == IMAGE["VOLUME"][0]


def secrets(pod: dict[str, Any]) -> list[dict[str, Any]]:
    entries = [e for c in pod["containers"] for e in c["env"] if "valueFrom" in e]
    return [{"variable": e["name"], **e["valueFrom"]["secretKeyRef"]} for e in entries]


def test_no_server_starts_before_its_keys(pod: dict[str, Any]) -> None:
    assert secrets(pod) == [{"variable": "KZTTS_API_KEYS", "name": "kazeia", "key": "api-keys"}]


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def parsed(arguments: list[str]) -> None:
    """Raises where `kazeia` would refuse these arguments."""
    group = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), arguments[0])
    command.make_context(arguments[0], arguments[1:])


def test_the_job_puts_the_model_where_the_server_looks(
    manifests: dict[str, dict[str, Any]], pod: dict[str, Any]
) -> None:
    job = manifests["Job"]["spec"]["template"]
    (pull,), (convert,) = job["spec"]["initContainers"], job["spec"]["containers"]
    (server,) = pod["containers"]
    assert pull["image"] == convert["image"] == server["image"]
    for step in (pull, convert):
        parsed(step["args"])
    with pytest.raises(Exception, match="--tipe"):
        parsed(["convert", "raw", "-o", "out", "--tipe", "q8_0"])
    assert pull["args"][1] in KNOWN_MODELS
    assert convert["args"][1] == option(pull["args"], "-o")
    environment = {entry["name"]: entry.get("value") for entry in server["env"]}
    assert option(convert["args"], "-o") == environment["KZTTS_MODEL"]
    claim = manifests["PersistentVolumeClaim"]
    for spec, container in ((job["spec"], pull), (job["spec"], convert), (pod, server)):
        volume = spec["volumes"][0]
        assert volume["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
        mount = container["volumeMounts"][0]
        assert mount["name"] == volume["name"]
        assert mount["mountPath"] == IMAGE["VOLUME"][0]
        assert mount.get("readOnly", False) == (container is server)
    assert job["spec"]["securityContext"] == pod["securityContext"]
    selector = manifests["Service"]["spec"]["selector"].items()
    assert not selector <= job["metadata"]["labels"].items()  # it answers no requests


# ---- keys and Wyoming --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "port", "expected"),
    [
        ("", "", ((), 10200)),  # a secret with nothing in it: for everyone
        ("one", "", (("one",), None)),
        ("one", "10200", (("one",), 10200)),
        ("", "off", ((), None)),
    ],
)
def test_keys_turn_wyoming_off_unless_its_port_is_named(
    keys: str, port: str, expected: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KZTTS_API_KEYS", keys)
    monkeypatch.setenv("KZTTS_WYOMING_PORT", port)
    settings = load_settings()
    assert (settings.api_keys, settings.wyoming_port) == expected


def test_who_sets_keys_can_name_the_port_of_wyoming(
    compose: dict[str, Any], pod: dict[str, Any]
) -> None:
    needed = {"KZTTS_API_KEYS", "KZTTS_WYOMING_PORT"}
    assert needed <= set(compose["services"]["kazeia"]["environment"])
    assert needed <= {entry["name"] for entry in pod["containers"][0]["env"]}


# ---- systemd -----------------------------------------------------------------------------


def verified(unit: str, folder: Path) -> str:
    """What systemd has to say about a unit whose command exists."""
    analyze = system_tool("systemd-analyze")
    command = folder / "kazeia"
    shutil.copy(sys.executable, command)
    file = folder / "kazeia.service"
    file.write_text(unit.replace("/opt/kazeia/bin/kazeia", str(command)), "utf-8")
    done = run(analyze, "verify", "--man=no", file)
    return "\n".join(
        line for line in (done.stdout + done.stderr).splitlines() if "kazeia.service" in line
    )


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    assert verified(UNIT.read_text("utf-8"), tmp_path) == ""


def test_systemd_would_refuse_an_unknown_key(tmp_path: Path) -> None:
    planted = UNIT.read_text("utf-8").replace("ProtectHome=", "ProtectHouse=")
    assert "ProtectHouse" in verified(planted, tmp_path)


def test_unit_is_hardened() -> None:
    done = run(system_tool("systemd-analyze"), "security", "--offline=true", "--no-pager", UNIT)
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert exposure is not None, done.stdout + done.stderr
    assert float(exposure[1]) < 2.0  # of 10; without the unit's restrictions 9 and more


def test_unit_agrees_with_the_settings() -> None:
    text = UNIT.read_text("utf-8")
    named = set(re.findall(r"KZTTS_[A-Z_]+", text))
    assert "KZTTS_SHUTDOWN_TIMEOUT_S" in named
    assert named <= SETTINGS
    drain = re.search(r"^Environment=KZTTS_SHUTDOWN_TIMEOUT_S=(\d+)$", text, re.M)
    stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.M)
    assert drain is not None
    assert stop is not None
    assert int(stop[1]) > int(drain[1]) + 5
    assert re.search(r"^ExecStart=\S+/bin/kazeia serve$", text, re.M)


def never_restarted(unit: str) -> set[int]:
    """Exit codes after which systemd leaves the server as it is."""
    found = re.search(r"^RestartPreventExitStatus=([\d ]+)$", unit, re.M)
    return set(map(int, found[1].split())) if found else set()


def test_systemd_restarts_what_another_start_may_mend(tmp_path: Path) -> None:
    never = never_restarted(UNIT.read_text("utf-8"))
    serve = (BIN / "kazeia", "serve", "--wyoming-port", "off")
    no_model = run(*serve, "--port", "0", "--model", tmp_path / "none")
    assert no_model.returncode in never, no_model.stderr
    bad_setting = run(*serve, KZTTS_PORT="http")
    assert bad_setting.returncode in never, bad_setting.stderr
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = run(*serve, "--port", str(other.getsockname()[1]))
    assert taken.returncode not in {0, *never}, taken.stderr
    assert never_restarted("[Service]\nRestart=on-failure\n") == set()
