"""Where the parts of a model are computed: the engine's own kernels, or a ggml device."""

from __future__ import annotations

import ctypes as C
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from kazeia_engine import binding
from kazeia_engine.errors import InvalidInput
from kazeia_engine.native_log import ggml_library
from kazeia_engine.options import integer

__all__ = ["Device", "Devices", "auto_device", "device_list", "json_text", "named"]

_MOST_ROWS = 1 << 30
_USUAL_TEXT = 1 << 16  # bytes


@dataclass(frozen=True, slots=True)
class Devices:
    """A device for each part of a model, and the most rows of a product there.

    "cpu" is the engine's own kernels; "auto" the first GPU, else "cpu"; the others are names of
    `device_list()`, whatever their case. What a device does not support falls back to ggml's
    processor device; "cpu-graph" computes all there, to compare with.

    max_rows: the decoder's products on a device have at most so many rows (time steps), for devices
    that refuse more; 0: any, else 64 or more.

    Raises InvalidInput for what is no name or out of range; whether a device exists is seen when
    the model is loaded.
    """

    talker: str = "cpu"
    cp: str = "cpu"
    decoder: str = "cpu"
    max_rows: int = 0

    def __post_init__(self) -> None:
        for part in ("talker", "cp", "decoder"):
            name = getattr(self, part)
            # No NUL, at which C ends a string, and nothing that UTF-8 has no form for.
            if not isinstance(name, str) or not name.strip() or not name.isprintable():
                raise InvalidInput(
                    f"the device of {part} is {name!r}, expected a name such as 'cpu' or 'auto'",
                    param="devices",
                )
        integer("max_rows", self.max_rows, 0, _MOST_ROWS)

    @classmethod
    def all(cls, name: str, *, max_rows: int = 0) -> Devices:
        """Every part on one device."""
        return cls(name, name, name, max_rows)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def named(
    every: str | None = None,
    *,
    talker: str | None = None,
    cp: str | None = None,
    decoder: str | None = None,
    max_rows: int | None = None,
) -> Devices:
    """Devices of command-line flags: one for every part, and one for each, which wins.

    None: the flag was not given. Raises InvalidInput as Devices does, for an empty name, too.
    """
    fallback = "cpu" if every is None else every
    talker, cp, decoder = (fallback if name is None else name for name in (talker, cp, decoder))
    return Devices(talker, cp, decoder, max_rows or 0)


@dataclass(frozen=True, slots=True)
class Device:
    """A ggml device beside the processor."""

    name: str
    description: str
    type: str  # gpu, integrated gpu, accelerator, cpu or other
    memory_free: int  # bytes, as the device tells; 0: unknown
    memory_total: int
    auto: bool  # what the name "auto" stands for


def device_list() -> list[Device]:
    """The devices that llama-cpp-python was built with and that are here.

    Raises EngineError when the engine library or ggml cannot be used.
    """
    ggml_library()  # first: it leads what ggml and its drivers report to `logging`
    return [Device(**item) for item in json.loads(json_text(binding.library().kz_devices))]


def auto_device() -> Device | None:
    """The device that the name "auto" stands for here; None: the engine's own kernels.

    Raises as `device_list`.
    """
    return next((device for device in device_list() if device.auto), None)


def json_text(call: Callable[..., int], *arguments: Any) -> str:
    """The JSON text that a function of the library writes into (json, size, needed).

    call is given `arguments` in front of these. Raises what `binding.check` does.
    """
    needed = C.c_size_t()
    size = _USUAL_TEXT
    while True:  # asking for the size first would do the work twice
        text = C.create_string_buffer(size)
        status = call(*arguments, text, size, C.byref(needed))
        if needed.value <= size:
            binding.check(status)
            return text.value.decode("utf-8", "replace")
        size = needed.value
