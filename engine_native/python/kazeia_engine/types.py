"""Values that cross the package's surface."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Chunk", "Ended", "Guard", "ModelInfo", "ModelKind", "Result", "TextMode"]

ModelKind = Literal["custom_voice", "voice_design", "base"]
TextMode = Literal["auto", "whole", "streaming"]
# runaway, silence and repetition: cut by a Guard.
Ended = Literal["eos", "max_frames", "cancelled", "runaway", "silence", "repetition"]


@dataclass(frozen=True, slots=True)
class Guard:
    """What ends speech that does not end by itself, as happens to a few sentences in a thousand.

    A text of T tokens takes about 3 T frames; it may take max(min_frames, T * frames_per_token).
    From half of that on, the logit of end-of-speech is raised by eos_boost once more each frame.
    repeat_frames: so many frames whose first codes repeat every 1 to 8 frames; silence_frames: so
    many in a row below -50 dB of full scale.  0 turns a part off.
    """

    frames_per_token: float = 15.0
    min_frames: int = 64
    eos_boost: float = 0.1
    repeat_frames: int = 48
    silence_frames: int = 50


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a loaded model is and can do."""

    name: str
    kind: ModelKind
    speakers: tuple[str, ...]  # empty unless kind is custom_voice
    languages: tuple[str, ...]  # tags the prompt accepts beside "auto"; dialects not listed
    sample_rate: int  # Hz
    frame_rate: float  # frames per second, 12.5
    sizes: dict[str, int] = field(
        default_factory=dict
    )  # talker_hidden, talker_layers, cp_hidden, ...
    formats: dict[str, str] = field(default_factory=dict)  # part -> weight type
    dialects: dict[str, str] = field(default_factory=dict)  # speaker -> dialect tag
    follows_instructions: bool = True

    @property
    def first_speaker(self) -> str | None:
        """For whoever has no wish; None: the model has no speakers."""
        return next(iter(self.speakers), None)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of audio as it leaves the decoder."""

    pcm: npt.NDArray[np.float32]  # [n], mono, -1..1
    index: int
    first_frame: int
    n_frames: int
    t_s: float  # seconds from the request to this chunk


@dataclass(frozen=True, slots=True)
class Result:
    """A finished utterance."""

    pcm: npt.NDArray[np.float32]  # [n], mono, -1..1
    sample_rate: int  # Hz
    codes: npt.NDArray[np.int32]  # [T, 16]
    ended: Ended
    ttfb_s: float  # seconds to the first chunk; nan when there was none
    n_chunks: int
    rtf: float  # work seconds / audio seconds; nan when there is no audio
    stages: dict[str, float]  # seconds by stage
    warnings: tuple[str, ...] = ()

    @property
    def truncated(self) -> bool:
        """Whether generation was cut before it ended by itself."""
        return self.ended != "eos"
