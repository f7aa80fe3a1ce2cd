"""How the commands of the documents are run: what is replaced, and what is not run, and why.

Every entry must still apply to something; `test_documented_commands.py` fails on those that do not.
"""

from __future__ import annotations

from typing import NamedTuple


class Replacement(NamedTuple):
    """A part of a command, what is run in its place, and why."""

    written: str
    run: str
    why: str


# Plain text, in this order.  `{port}` and `{wyoming}` are free ones.
REPLACEMENTS = (
    Replacement("8080", "{port}", "the port may be taken"),
    Replacement("kazeia bench --model", "kazeia bench --frames 4 --repeat 1 --model", "minutes"),
    Replacement(
        "kazeia bench --synthetic 0.6b",
        "kazeia bench --frames 4 --repeat 1 --model models/custom",
        "a gigabyte, minutes",
    ),
    Replacement(
        "kazeia quality",
        "kazeia quality --min-snr 0 --min-talker 0 --min-cp 0",
        "the tiny model has random weights: its formats agree on nothing",
    ),
    Replacement(
        'speaker="vivian"', 'speaker="vivian", max_frames=8', "the tiny model never ends by itself"
    ),
    Replacement("10200", "{wyoming}", "the port may be taken"),
    Replacement("alloy=serena", "alloy=vivian", "the tiny model has other voices"),
    Replacement("aplay -r 24000 -f S16_LE -c 1", "cat > played.pcm", "no sound card"),
    Replacement("Vulkan0", "cpu-graph", "no GPU; tests/vulkan speaks on one"),
)

# A command or block with one of these in it speaks with a server; one is started where the document
# has started none.
NEEDS_SERVER = ("127.0.0.1:8080", "Client()", "kazeia-client ")

# The beginning of a command, or of a block that is no shell's -> why it is not run.
NOT_RUN = {
    "make ": "compiles for minutes; .ci/run runs the verbs, test_repository.py knows their names",
    "pip install ": "changes the environment; `make install` and the test groups install these",
    "from livekit": "needs `--group clients`; tests/clients speaks through these classes",
    "from pipecat": "needs `--group clients`; tests/clients speaks through these classes",
    "import asyncio\n\nimport aiohttp\nfrom livekit": "needs `--group clients`",
    "./kazeia_say ": "is built first; tests/clients builds and runs it",
    "pytest ": "a test does not run all tests",
    "kazeia pull ": "needs the network; tests/engine/tools/test_pull.py has a hub of its own",
    "docker ": "needs a container engine; tests/docker reads the Dockerfile and compose.yaml",
    "CPUS=4 KZTTS_MODEL=/models/custom docker compose ": "needs a container engine",
    "kubectl ": "needs a cluster; tests/docker checks the manifests",
    "sed 's|image: kazeia:|": "needs a cluster; tests/docker runs the part before kubectl",
    "sudo ": "needs root; tests/docker installs the wheels, reads the settings, verifies the unit",
    "printf '%s\\n' KZTTS_MODEL=/srv/kazeia/custom ": "needs root; tests/docker reads the settings",
    "echo performance | sudo tee ": "needs root and a real processor",
    "cat /sys/class/thermal/": "a virtual machine has no thermometer",
    "python tests/bench/server_figures.py": "minutes; measures, and needs a quiet machine",
    "python tests/golden/make_golden.py ": "needs torch and the official package: several GB",
}

# Words of commands that change the machine: refused unless the plan leaves the command out.
CHANGES_THE_MACHINE = (
    *("sudo", "su", "doas", "pkexec", "chroot", "mount", "umount", "mkfs", "dd"),
    *("docker", "podman", "nerdctl", "buildah", "kubectl", "helm", "minikube"),
    *("systemctl", "systemd-run", "loginctl", "crontab", "nginx", "caddy", "traefik", "iptables"),
    *("apt", "apt-get", "aptitude", "dpkg", "dnf", "yum", "pacman", "snap", "brew", "npm", "conda"),
    *("uninstall", "pipx", "uv", "poetry", "twine"),
    *("reboot", "shutdown", "poweroff", "useradd", "usermod", "kill", "killall", "pkill"),
)

# Languages of blocks that are not run: nothing to run, or why not.  `text` is never a command.
NOT_RUN_LANGUAGES = {
    "cmake": "a fragment",
    "html": "a page; tests/browser runs one in a Chromium",
    "js": "a fragment; tests/browser runs the module in a Chromium",
    "text": "diagrams, formulas and what a program prints",
}
