"""The C interface keeps what include/VERSIONING.md promises."""

from __future__ import annotations

import copy
import ctypes as C
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kazeia_engine import binding
from kazeia_engine.modelfiles import ModelPair, find_pair
from kazeia_engine.tools.synth import synth

ABI = Path(__file__).parent / "abi"
sys.path.insert(0, str(ABI))

from record import HEADER, Layout, compiler, layout_of, version_of  # noqa: E402

RECORDS = {int(path.parent.name): path.parent for path in ABI.glob("*/layout.json")}
# The library writes or reads them without a size of the caller's.
FROZEN = {"kz_sampling", "kz_prompt", "kz_guard", "kz_chunk", "kz_trace_out"}
COUNTS = {"KZ_N_STAGES"}  # grow with what they count


def breaks(old: Layout, new: Layout) -> list[str]:
    """What a program compiled for `old` would trip over in `new`."""
    found = [
        f"{name} changed"
        for name, declaration in old["functions"].items()
        if new["functions"].get(name) != declaration
    ]
    found += [
        f"{name} changed its value"
        for name, value in old["enums"].items()
        if name not in COUNTS and new["enums"].get(name) != value
    ]
    for name, struct in old["structs"].items():
        now = new["structs"].get(name, {"size": 0, "fields": {}})
        found += [
            f"{name}.{field} moved"
            for field, place in struct["fields"].items()
            if now["fields"].get(field) != place
        ]
        found += [
            f"{name}.{field} lies within the old struct"
            for field, (offset, _) in now["fields"].items()
            if field not in struct["fields"] and offset < struct["size"]
        ]
        if name in FROZEN and now["size"] != struct["size"]:
            found.append(f"{name} must not grow")
    return found


@pytest.fixture(scope="module")
def today() -> Layout:
    return layout_of(HEADER)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    folder = tmp_path_factory.mktemp("tiny")
    synth(folder, size="tiny")
    return find_pair(folder)


def test_every_function_of_the_header_is_in_the_library(today: Layout) -> None:
    library = binding.library()
    assert [name for name in today["functions"] if not hasattr(library, name)] == []
    assert library.kz_abi_version() == version_of(HEADER)


def test_this_version_is_written_down() -> None:
    """What is not recorded could change unseen."""
    assert version_of(HEADER) == max(RECORDS), "run tests/engine/abi/record.py"


def recorded(version: int) -> Layout:
    layout: Layout = json.loads((RECORDS[version] / "layout.json").read_text("utf-8"))
    return layout


@pytest.mark.parametrize("version", sorted(RECORDS))
def test_older_programs_find_what_they_know(version: int, today: Layout) -> None:
    old = recorded(version)
    assert breaks(old, today) == []
    if version == version_of(HEADER):
        assert old == today, "a new thing in the header needs a new KZ_ABI_VERSION"
    assert version <= version_of(HEADER)
    assert version_of(RECORDS[version] / "kazeia.h") == version


def test_structs_with_a_size_are_told_from_those_without(today: Layout) -> None:
    sized = {n for n, s in today["structs"].items() if next(iter(s["fields"])) == "struct_size"}
    assert sized | FROZEN == set(today["structs"])


@pytest.mark.parametrize("version", sorted(RECORDS))
def test_an_older_program_runs(version: int, pair: ModelPair, tmp_path: Path) -> None:
    library = Path(binding.library()._name)
    program = tmp_path / "program"
    command = [
        compiler(), "-Wall", "-Werror", "-I", RECORDS[version], "-o", program, ABI / "program.c",
        "-L", library.parent, "-l:" + library.name, f"-Wl,-rpath,{library.parent}",
        "-Wl,--unresolved-symbols=ignore-in-shared-libs",
    ]  # fmt: skip
    subprocess.run([str(c) for c in command], check=True, timeout=60)
    done = subprocess.run(
        [program, pair.talker, pair.codec], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 frames of 1920 samples: 7680\n"


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda new: new["functions"].pop("kz_model_load"), "kz_model_load changed"),
        (lambda new: new["enums"].update(KZ_END=2), "KZ_END changed its value"),
        (
            lambda new: new["structs"]["kz_result"]["fields"].update(ttfb_s=[40, 8]),
            "kz_result.ttfb_s moved",
        ),
        (
            lambda new: new["structs"]["kz_model_info"]["fields"].update(extra=[52, 4]),
            "kz_model_info.extra lies within the old struct",
        ),
        (lambda new: new["structs"]["kz_prompt"].update(size=64), "kz_prompt must not grow"),
    ],
)
def test_a_broken_promise_is_seen(spoil: Any, complaint: str, today: Layout) -> None:
    new = copy.deepcopy(today)
    spoil(new)
    assert breaks(today, new) == [complaint]


def test_a_record_that_differs_is_seen(today: Layout) -> None:
    """What programs of the oldest version know, spoiled as if they knew something else."""
    oldest = recorded(min(RECORDS))
    oldest["functions"]["kz_gone"] = "void kz_gone(void)"
    oldest["enums"]["KZ_END"] += 1
    fields = oldest["structs"]["kz_stream_params"]["fields"]
    fields["seed"][0] += 4
    del fields["chunk"]
    oldest["structs"]["kz_chunk"]["size"] += 8
    assert breaks(oldest, today) == [
        "kz_gone changed",
        "KZ_END changed its value",
        "kz_stream_params.seed moved",
        "kz_stream_params.chunk lies within the old struct",
        "kz_chunk must not grow",
    ]


def test_a_grown_struct_is_no_broken_promise(today: Layout) -> None:
    new = copy.deepcopy(today)
    for name in ("kz_load_params", "kz_stream_params"):
        grown = new["structs"][name]
        grown["fields"]["extra"] = [grown["size"], 4]
        grown["size"] += 4
    new["functions"]["kz_more"] = "void kz_more(void)"
    assert breaks(today, new) == []


class _Newer(C.Structure):
    _fields_ = (*binding.LoadParams._fields_, ("newer", C.c_int64))


@pytest.mark.parametrize(("newer", "ok"), [(0, True), (1, False)])
def test_a_newer_program_is_served_if_it_asks_for_nothing_new(
    newer: int, ok: bool, pair: ModelPair
) -> None:
    params = _Newer(struct_size=C.sizeof(_Newer), n_threads=1, newer=newer)
    library = C.CDLL(binding.library()._name)  # without argument types
    library.kz_last_error.restype = C.c_char_p
    model = C.c_void_p()
    files = (str(pair.talker).encode(), str(pair.codec).encode())
    status = library.kz_model_load(*files, C.byref(params), C.byref(model))
    assert (status == 0) is ok, library.kz_last_error()
    if ok:
        library.kz_model_free(model)
    else:
        assert b"compiled for a newer one" in library.kz_last_error()
