"""What of a shell's language the documents may use: that which fails when a part of it fails.

`set -e` does not see a failure in a condition, before `&&`, in the background or in a substitution.
Commands are therefore cut at `&&` and `;` and run as lines, and the rest is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# At the beginning of a command: they hide a failure, or what they run is not seen.
_CONTROL = re.compile(
    r"(?:\w+=\S*\s+)*(?:(!|\[\[|\{|if|then|else|elif|while|until|for|case|select|function|coproc|time|"
    r"eval|source|\.|set|shopt|trap|exit|return|bash|sh|dash|zsh|xargs|nohup|setsid|disown|command|"
    r"builtin|env)(?=\s|$)|(exec)(?!\s+\d+[<>]))"
)
# In quotes too where the shell expands them.
_EXPANDED = re.compile(r"\$\(|`")
_OPERATORS = re.compile(r"<<|[<>]\(|\|\||\$\(|`|\(|\)|&&|;|(?<![<>|])&(?![>&])")
_PROMPT = re.compile(r"\s*[$%>#]\s+")
# A path that leads out of the folder; what stands behind a `:` is part of an address.
_OUTSIDE = re.compile(
    r"(?<![\w:/.\-$}*{])(?:/(?!dev/(?:null|tcp/|stdin|stdout|stderr))\w|~)|(?<![\w.])\.\.(?:/|$)"
)


@dataclass
class Command:
    """A command, and what of it is refused ("": nothing)."""

    text: str
    refused: str = ""


def commands_of(text: str) -> list[str]:
    """The commands of a shell block: lines, cut at `&&` and `;`."""
    return [command.text for command in parsed(text)]


def parsed(text: str) -> list[Command]:
    """The commands of a shell block, in order."""
    found = []
    for line in text.replace("\\\n", "").splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            found += _cut(line)
    return found


def outside(text: str) -> str:
    """The first path in code that leads out of the folder; "": none."""
    found = _OUTSIDE.search(text)
    return text[found.start() :].split()[0] if found else ""


def without_prompt(line: str) -> str:
    """A line of a terminal without the prompt, and without variables before its command."""
    line = _PROMPT.sub("", line, count=1).strip()
    return re.sub(r"^(?:\w+=\S*\s+)+", "", line)


def _cut(line: str) -> list[Command]:
    found = [Command("")]
    at = 0
    while at < len(line):
        here = found[-1]
        quoted = _quoted(line, at)
        if quoted:
            if quoted[0] == '"' and _EXPANDED.search(quoted) and not _tests(here.text):
                here.refused = here.refused or "$(...)"
            if len(quoted) == 1:
                here.refused = here.refused or "a quotation of several lines"
                quoted = line[at:]
            here.text += quoted
            at += len(quoted)
            continue
        if line[at] == "#" and line[at - 1 : at].strip() == "":
            here.text += line[at:]  # a comment
            break
        operator = _OPERATORS.match(line, at)
        if operator is None:
            here.text += line[at]
            at += 1
            continue
        if operator[0] in ("&&", ";"):
            found.append(Command(""))
        else:
            here.text += operator[0]
            here.refused = here.refused or operator[0]
        at = operator.end()
    return [_judged(command) for command in found if command.text.strip()]


def _judged(command: Command) -> Command:
    text = command.text.strip()
    control = _CONTROL.match(text)
    if control is not None:
        return Command(text, control[1] or control[2])
    return Command(text, command.refused)


def _tests(command: str) -> bool:
    """Whether it compares what other commands print: their failure is seen by that."""
    return command.lstrip().startswith("test ")


def _quoted(line: str, at: int) -> str:
    """The quotation or the escaped character that begins here; "": none; a quote: has no end."""
    if line[at] == "\\":
        return line[at : at + 2]
    if line[at] not in "'\"":
        return ""
    inner = r"'[^']*'" if line[at] == "'" else r'"(?:[^"\\]|\\.)*"'
    found = re.compile(inner).match(line, at)
    return found[0] if found else line[at]
