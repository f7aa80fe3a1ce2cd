"""Every block of code in every document is run, or the plan says why not."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import pytest
from documents import SHELL, Block, blocks_of, documents, name_of
from plan import NOT_RUN, NOT_RUN_LANGUAGES, REPLACEMENTS
from sandbox import Failed, Sandbox, left_out
from shell import commands_of

BLOCKS = {name_of(d): blocks_of(name_of(d), d.read_text("utf-8")) for d in documents()}


@pytest.mark.timeout(1800)  # each block has a limit of its own
@pytest.mark.parametrize("document", [name for name, blocks in BLOCKS.items() if blocks])
def test_the_commands_of(document: str, sandbox: Sandbox) -> None:
    for block in BLOCKS[document]:
        sandbox.run(block)


def test_the_plan_holds_nothing_old() -> None:
    blocks = [block for blocks in BLOCKS.values() for block in blocks]
    commands = [c for b in blocks if b.language in SHELL for c in commands_of(b.text)]
    assert unused([*commands, *(b.text for b in blocks if b.language not in SHELL)]) == []
    languages = {block.language for block in blocks}
    assert set(NOT_RUN_LANGUAGES) <= languages


def unused(commands: list[str]) -> list[str]:
    """Entries of the plan that none of these commands needs."""
    starts = [start for start in NOT_RUN if not any(c.startswith(start) for c in commands)]
    kept = [c for c in commands if not left_out(c)]
    written = [r.written for r in REPLACEMENTS if not any(r.written in c for c in kept)]
    return starts + written


# ---- the harness itself ------------------------------------------------------------


def sample(text: str) -> list[Block]:
    return blocks_of("sample.md", text)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("    kazeia sing hello\n", r"sample.md:1: exit code 2(?s:.*)failed: kazeia sing hello"),
        ("Words.\n\n    true\n    false\n    true\n", r"sample.md:3: exit code 1"),
        ("```python\nfrom kazeia_engine import Modell\n```\n", "cannot import name 'Modell'"),
        ("```sh\ncurl -s http://127.0.0.1:8080/nothing -o x\n```\n", "exit code 22"),
        ("    kazeia serve --model models/none --port 8080\n", "models/none"),
        ("    python -m pip install no-such\n", "No matching distribution found for no-such"),
        ("```yaml\na: [\n```\n", "not yaml"),
        ("```c\nkz_sing();\n```\n", "kz_sing"),
        ("```\nanything\n```\n", "no language"),
        ("```cobol\nDISPLAY 1.\n```\n", "cobol: say in tests/docs how"),
        ("```text\nkazeia doctor\n```\n", "a command in a block that is not run"),
        ("```text\n$ kazeia doctor\n```\n", "a command in a block that is not run"),
        ("```text\nSo:\n  KZTTS_X=1 kazeia doctor\n```\n", "a command in a block that is not run"),
        ("    kazeia sing && true\n    true\n", "exit code 2"),
        ("    kazeia sing | true\n    true\n", "exit code 2"),
        ("    touch /etc/kazeia-was-here\n", "/etc/kazeia-was-here is outside of the folder"),
        ("    touch ../here\n", "../here is outside"),
        ("    touch ~/here\n", "~/here is outside"),
        ("    echo x >/srv/x\n", "/srv/x is outside"),
        ("```python\nopen('/srv/x', 'w')\n```\n", "/srv/x.* is outside"),
        ("```python ../x.py\npass\n```\n", "expected a name without a folder"),
        ("    python -m pip uninstall -y no-such\n", "uninstall is never run here"),
        ("- in a list:\n\n      kazeia --no-such-option\n", "sample.md:3: exit code 2"),
    ],
)
def test_a_broken_page_fails(page: str, complaint: str, sandbox: Sandbox) -> None:
    with pytest.raises(Failed, match=complaint):
        for block in sample(page):
            sandbox.run(block)


@pytest.mark.parametrize(
    "command",
    [
        "sudo true",
        "docker ps",
        "kubectl version",
        "helm list",
        "systemctl status",
        "apt list",
        "nginx -v",
        "true && /usr/bin/apt-get moo",
        "echo $(sudo true)",
        "FOO=1 docker ps",
    ],
)
def test_what_changes_the_machine_is_refused(command: str, sandbox: Sandbox) -> None:
    with (
        patch("sandbox.NOT_RUN", {}),
        pytest.raises(Failed, match="is never run here"),
    ):
        sandbox.run(sample(f"    touch ran\n    {command}\n")[0])
    assert not (sandbox.folder / "ran").exists()
    with pytest.raises(Failed, match="docker is never run here"):
        sandbox.run(sample("```python\nimport os\nos.system('docker ps')\n```\n")[0])


def test_what_is_left_out_is_told(sandbox: Sandbox) -> None:
    (block,) = sample("    touch here\n    make run\n")
    assert sandbox.run(block) == ["make run"]
    assert (sandbox.folder / "here").exists()


def test_an_entry_that_nothing_needs_is_seen() -> None:
    needed = [*NOT_RUN, *(r.written for r in REPLACEMENTS)]
    assert unused(needed) == []
    assert unused(needed[1:]) == [needed[0]]
    assert unused(needed[:-1]) == [needed[-1]]


def test_commands_are_lines() -> None:
    text = "# a comment\none \\\n  --more  # why\n\ntwo\n"
    assert commands_of(text) == ["one   --more  # why", "two"]
    assert commands_of("a && b 'c && d'; e # f && g") == ["a", "b 'c && d'", "e # f && g"]


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("if kazeia sing; then true; fi", "if"),
        ("! kazeia sing", "!"),
        ("kazeia sing || true", "||"),
        ("echo $(kazeia sing)", "$("),
        ('echo "$(kazeia sing)"', "$("),
        ("echo `kazeia sing`", "`"),
        ("export X=$(kazeia sing)", "$("),
        ("cat <(kazeia sing)", "<("),
        ("kazeia sing &", "&"),
        ("(kazeia sing)", "("),
        ("cat <<E", "<<"),
        ("cat <<< word", "<<"),
        ("set +e", "set"),
        ("exit 0", "exit"),
        ("exec true", "exec"),
        ("X=1 bash -c 'kazeia sing; true'", "bash"),
        ("echo 'over", "a quotation of several lines"),
    ],
)
def test_what_could_fail_unnoticed_is_refused(command: str, part: str, sandbox: Sandbox) -> None:
    told = re.escape(part) + ".*: a failure in it would go unnoticed"
    with pytest.raises(Failed, match=told):
        sandbox.run(sample(f"    touch ran\n    {command}\n")[0])
    assert not (sandbox.folder / "ran").exists()


def test_each_part_of_a_line_is_looked_up_in_the_plan(sandbox: Sandbox) -> None:
    (block,) = sample("    make run && touch here; make test\n")
    assert sandbox.run(block) == ["make run", "make test"]
    assert (sandbox.folder / "here").exists()


def test_settings_of_the_developer_are_not_inherited(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/elsewhere")
    monkeypatch.setenv("KZTTS_MODEL", "/elsewhere")
    sandbox = Sandbox(tmp_path, models)
    (block,) = sample('    test "$XDG_CONFIG_HOME${KZTTS_MODEL-}" = "$HOME/CONFIG"\n')
    sandbox.run(block)
    sandbox.close()


def test_nothing_goes_on_running(sandbox: Sandbox) -> None:
    code = "import subprocess\nsubprocess.Popen(['sleep', '4242'], start_new_session=True)\n"
    with (
        patch("sandbox.GRACE_S", 1),
        pytest.raises(Failed, match="processes go on running: sleep 4242"),
    ):
        sandbox.run(sample(f"```python\n{code}```\n")[0])
    assert sandbox.processes() == []


def test_what_takes_too_long_is_ended_with_all_it_started(sandbox: Sandbox) -> None:
    with (
        patch("sandbox.GRACE_S", 1),
        patch("sandbox.TIMEOUT_S", 1),
        pytest.raises(Failed, match="not done after 1 s"),
    ):
        sandbox.run(sample("    sleep 4242 | sleep 4243\n")[0])
    assert sandbox.processes() == []


def test_closing_ends_the_server(tmp_path: Path, models: Path) -> None:
    sandbox = Sandbox(tmp_path, models)
    sandbox.run(sample("    kazeia serve --model models/custom --port 8080\n")[0])
    assert sandbox.processes() != []
    sandbox.close()
    assert sandbox.processes() == []


def test_a_block_is_saved_under_its_name(sandbox: Sandbox, tmp_path: Path) -> None:
    page = "```python hello.py\nprint('hello')\n```\n\n    python hello.py > said.txt\n"
    for block in sample(page):
        sandbox.run(block)
    assert (sandbox.folder / "said.txt").read_text() == "hello\n"
