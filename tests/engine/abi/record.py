"""Writes down the C interface of this version: `python tests/engine/abi/record.py`.

A folder a version: `kazeia.h` as it is, and `layout.json`, what a C compiler makes of it on
64-bit Linux.  A version that is written down already may not change any more.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEADER = HERE.parents[2] / "engine_native" / "include" / "kazeia.h"

Layout = dict[str, Any]  # "functions", "enums", "structs"


def version_of(header: Path) -> int:
    """KZ_ABI_VERSION."""
    match = re.search(r"^#define KZ_ABI_VERSION (\d+)$", header.read_text("utf-8"), re.M)
    if match is None:
        raise LookupError(f"{header} does not define KZ_ABI_VERSION")
    return int(match[1])


def compiler() -> str:
    """The C compiler: $CC, or cc."""
    return os.environ.get("CC", "cc")


def layout_of(header: Path) -> Layout:
    """Functions with their declarations, values of enumerations, offset and size of every field."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text("utf-8"), flags=re.S)
    functions = {
        match[2]: " ".join(f"{match[1]} {match[2]}({match[3]})".split())
        for match in re.finditer(r"^KZ_API ([\w *]+?)(kz_\w+)\(([^)]*)\)", text, re.M)
    }
    enums = re.findall(r"typedef enum \w+ \{(.*?)\} \w+;", text, re.S)
    values = re.findall(r"\bKZ_\w+", re.sub(r"=[^,]*", "", ",".join(enums)))
    structs = {name: _fields(body) for body, name in _structs(text)}
    return {"functions": functions, **_measured(header, values, structs)}


def _structs(text: str) -> list[tuple[str, str]]:
    return re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.S)


def _fields(body: str) -> list[str]:
    declarations = [d for d in body.split(";") if d.strip()]
    names = [re.sub(r"\[.*?\]", "", part) for d in declarations for part in d.split(",")]
    return [re.findall(r"\w+", name)[-1] for name in names]


def _measured(header: Path, values: list[str], structs: dict[str, list[str]]) -> Layout:
    """What the compiler says of them."""
    lines = [f'printf("enums {v} %lld\\n", (long long){v});' for v in values]
    for name, fields in structs.items():
        lines.append(f'printf("structs {name} %zu\\n", sizeof({name}));')
        for field in fields:
            place = f"offsetof({name}, {field}), sizeof((({name} *)0)->{field})"
            lines.append(f'printf("fields {name} {field} %zu %zu\\n", {place});')
    source = '#include <stdio.h>\n#include "kazeia.h"\nint main(void) {\n%s\nreturn 0;\n}\n'
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "layout"
        program.with_suffix(".c").write_text(source % "\n".join(lines), "utf-8")
        command = [compiler(), "-I", header.parent, "-o", program, program.with_suffix(".c")]
        subprocess.run(list(map(str, command)), check=True)
        printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    layout: Layout = {"enums": {}, "structs": {}}
    for kind, name, *rest in map(str.split, printed.splitlines()):
        if kind == "enums":
            layout["enums"][name] = int(rest[0])
        elif kind == "structs":
            layout["structs"][name] = {"size": int(rest[0]), "fields": {}}
        else:
            layout["structs"][name]["fields"][rest[0]] = [int(rest[1]), int(rest[2])]
    return layout


def main() -> int:
    """0: written; 1: this version is written down, and differs."""
    folder = HERE / str(version_of(HEADER))
    layout = layout_of(HEADER)
    record = folder / "layout.json"
    if record.exists() and json.loads(record.read_text("utf-8")) != layout:
        print(f"{folder} holds another layout: raise KZ_ABI_VERSION", file=sys.stderr)
        return 1
    folder.mkdir(exist_ok=True)
    shutil.copy(HEADER, folder)
    record.write_text(json.dumps(layout, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
