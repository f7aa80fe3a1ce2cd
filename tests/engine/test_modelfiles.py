"""Finding a pair by content, and what is said about files that are none."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kazeia_engine import modelfiles
from kazeia_engine.errors import ModelFormatError, ModelNotFound
from kazeia_engine.modelfiles import TYPE_SIZES, ModelPair, find_pair, read_header, read_values


@pytest.fixture
def pair(golden_models: dict[str, Path], tmp_path: Path) -> ModelPair:
    """A pair in a folder of its own, under names that say nothing."""
    found = find_pair(golden_models["custom-projected"])
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(found.talker, folder / "b.gguf")
    shutil.copy(found.codec, folder / "a.gguf")
    return ModelPair(folder / "b.gguf", folder / "a.gguf")


def foreign(path: Path, architecture: str = "llama") -> None:
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_sizes_of_types_are_those_of_gguf() -> None:
    known = {int(k): v for k, v in gguf.GGML_QUANT_SIZES.items()}
    assert {k: TYPE_SIZES.get(k) for k in known} == known


def test_found_by_content(pair: ModelPair) -> None:
    assert find_pair(pair.talker.parent) == pair
    assert find_pair(str(pair.talker)) == pair


def test_found_as_llama_cpp_writes_it(golden_models: dict[str, Path]) -> None:
    found = find_pair(golden_models["llamacpp-base"])
    assert found.talker.name == "tiny-talker-f32.gguf"
    assert found.codec.name == "tiny-mmproj-f32.gguf"


def test_other_files_in_the_folder_do_not_matter(pair: ModelPair) -> None:
    foreign(pair.talker.parent / "0-other.gguf")
    (pair.talker.parent / "1-broken.gguf").write_bytes(b"GGUF")
    (pair.talker.parent / "notes.txt").write_text("x")
    assert find_pair(pair.talker.parent) == pair


@pytest.mark.parametrize("gone", ["talker", "codec"])
def test_the_missing_file_is_named(pair: ModelPair, gone: str) -> None:
    getattr(pair, gone).unlink()
    with pytest.raises(ModelNotFound, match=f"no {gone} file"):
        find_pair(pair.talker.parent)


def test_a_talker_file_alone(pair: ModelPair) -> None:
    pair.codec.unlink()
    with pytest.raises(ModelNotFound, match=r"b\.gguf has no fitting codec file"):
        find_pair(pair.talker)


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nowhere"):
        find_pair(tmp_path / "nowhere")
    with pytest.raises(ModelNotFound, match="no talker and no codec"):
        find_pair(tmp_path)


def test_the_codec_file_is_not_enough(pair: ModelPair) -> None:
    with pytest.raises(ModelFormatError, match="is a codec file"):
        find_pair(pair.codec)


def test_a_foreign_model(tmp_path: Path) -> None:
    foreign(tmp_path / "x.gguf", "bert")
    with pytest.raises(ModelFormatError, match="'bert'"):
        find_pair(tmp_path / "x.gguf")


@pytest.mark.parametrize("which", ["talker", "codec"])
@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "empty"), (b"RIFF....WAVE", "not a GGUF file"), (b"GG", "not a GGUF file")],
)
def test_a_file_of_another_kind(pair: ModelPair, which: str, content: bytes, said: str) -> None:
    path: Path = getattr(pair, which)
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match=rf"{path.name}.*{said}"):
        find_pair(pair.talker.parent)


@pytest.mark.parametrize("which", ["talker", "codec"])
@pytest.mark.parametrize("keep", [0.0005, 0.01, 0.5, 0.9999])
def test_a_truncated_file(pair: ModelPair, which: str, keep: float) -> None:
    path: Path = getattr(pair, which)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * keep)])
    with pytest.raises(ModelFormatError, match=rf"{path.name}.*truncated"):
        find_pair(pair.talker.parent)


def test_a_codec_file_of_another_model(pair: ModelPair, golden_models: dict[str, Path]) -> None:
    shutil.copy(find_pair(golden_models["custom-equal"]).codec, pair.codec)
    with pytest.raises(ModelFormatError, match="widths differ"):
        find_pair(pair.talker.parent)


def test_several_models_in_one_folder(pair: ModelPair, golden_models: dict[str, Path]) -> None:
    folder = pair.talker.parent
    other = find_pair(golden_models["custom-equal"])
    shutil.copy(other.talker, folder / "other-talker.gguf")
    shutil.copy(other.codec, folder / "mmproj-other.gguf")
    with pytest.raises(ModelFormatError, match="several talker files"):
        find_pair(folder)
    assert find_pair(pair.talker) == pair
    assert find_pair(folder / "other-talker.gguf").codec.name == "mmproj-other.gguf"


def test_the_name_decides_between_fitting_codec_files(pair: ModelPair) -> None:
    folder = pair.talker.parent
    shutil.copy(pair.codec, folder / "mmproj-zzz.gguf")
    with pytest.raises(ModelFormatError, match="several codec files"):
        find_pair(folder)
    shutil.copy(pair.codec, folder / "mmproj-b-codec.gguf")
    assert find_pair(folder).codec.name == "mmproj-b-codec.gguf"


@pytest.mark.parametrize(
    "tail",
    [
        struct.pack("<QQ", 1 << 60, 1),  # tensors without end
        struct.pack("<QQ", 0, 1 << 60),  # keys without end
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1 << 63),  # a key without end
        struct.pack("<QQ", 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 1 << 62),  # strings
        struct.pack("<QQ", 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 62),  # numbers
        struct.pack("<QQ", 0, 1) + struct.pack("<Q1sI", 1, b"k", 77),  # unknown kind
        struct.pack("<QQ", 0, 1) + struct.pack("<Q1sI", 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 99,
        struct.pack("<QQ", 1, 0) + struct.pack("<Q1sI", 1, b"t", 99),  # 99 dimensions
        struct.pack("<QQ", 1, 0) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 8, 999, 0),  # unknown type
        struct.pack("<QQ", 0, 1) + struct.pack("<Q1sIQ2s", 1, b"k", 8, 2, b"\xff\xfe"),  # no UTF-8
    ],
)
@pytest.mark.timeout(30)
def test_hostile_headers_end(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + tail)
    with pytest.raises(ModelFormatError, match=r"hostile\.gguf"):
        read_header(path)


def test_a_large_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "large.gguf"), "qwen3tts")
    info = ("big", (1 << 10, 1 << 20), np.dtype(np.float32), 1 << 32)
    writer.add_tensor_info(*info)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    path = tmp_path / "large.gguf"
    with path.open("r+b") as f:
        f.truncate((1 << 32) + 4096)  # a hole: takes no room on the disk
    read = []
    monkeypatch.setattr(modelfiles, "_PIECE", 512)
    monkeypatch.setattr(modelfiles, "_Parser", counting(read))
    assert read_header(path).tensors["big"][:2] == ((1 << 20, 1 << 10), 0)
    assert 0 < sum(read) <= 1024


def counting(read: list[int]) -> type[modelfiles._Parser]:
    """A parser that notes how many bytes it has read in the end."""

    class Counting(modelfiles._Parser):
        def header(self) -> modelfiles.GgufHeader:
            header = super().header()
            read.append(len(self._data))
            return header

    return Counting


def test_arrays_and_places_are_those_of_the_other_reader(pair: ModelPair) -> None:
    for path in (pair.talker, pair.codec):
        header, reader = read_header(path, arrays=True), gguf.GGUFReader(path)
        fields = {n: f for n, f in reader.fields.items() if not n.startswith("GGUF.")}
        assert header.values == {name: f.contents() for name, f in fields.items()}
        assert header.types == {
            name: (f.types[0], f.types[-1] if len(f.types) > 1 else None)
            for name, f in fields.items()
        }
        assert header.tensors == {
            t.name: (tuple(t.shape), t.tensor_type, t.data_offset, t.n_bytes)
            for t in reader.tensors
        }
        few = read_header(path)
        assert few.tensors == header.tensors
        assert few.values == {n: v for n, v in header.values.items() if not isinstance(v, list)}


def test_arrays_of_every_type(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "test")
    arrays: dict[str, list[Any]] = {
        "strings": ["", "é", "🎵"],
        "integers": [1, -2, 3],
        "floats": [0.5, -1.0],
        "flags": [True, False],
        "nested": [[1, 2], [3]],
    }
    for name, values in arrays.items():
        writer.add_array(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    header = read_header(path, arrays=True)
    assert {name: header.values[name] for name in arrays} == arrays
    assert header.types["strings"] == (gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING)
    assert set(read_header(path).values) == {"general.architecture"}


@pytest.mark.parametrize("arrays", [False, True])
def test_a_file_that_is_cut_while_it_is_read(
    pair: ModelPair, monkeypatch: pytest.MonkeyPatch, arrays: bool
) -> None:
    class Cutting(modelfiles._Parser):
        def _string(self) -> str:
            os.truncate(pair.talker, 600)
            return super()._string()

    monkeypatch.setattr(modelfiles, "_PIECE", 512)
    monkeypatch.setattr(modelfiles, "_Parser", Cutting)
    with pytest.raises(ModelFormatError, match=r"b\.gguf is truncated within its header"):
        read_header(pair.talker, arrays=arrays)


def test_values_beyond_the_end(pair: ModelPair) -> None:
    size = pair.talker.stat().st_size
    assert len(read_values(pair.talker, "t", np.uint8, size - 8, 8)) == 8
    with pytest.raises(ModelFormatError, match=r"b\.gguf is truncated: it ends within tensor t"):
        read_values(pair.talker, "t", np.uint8, size - 8, 9)


def test_a_header_without_end(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    with path.open("wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 4, 1 << 29))
        f.truncate(1 << 32)
    with pytest.raises(ModelFormatError, match="more than 268435456 bytes of header"):
        read_header(path)


def test_a_pipe_among_the_models_is_refused_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    with pytest.raises(ModelFormatError, match="not a file"):
        read_header(pipe)
    with pytest.raises(ModelFormatError, match="not a file"):
        find_pair(tmp_path)


def test_an_official_folder_is_named_as_one(golden_dir: Path) -> None:
    with pytest.raises(ModelFormatError, match="kazeia convert"):
        find_pair(golden_dir / "custom-equal")
