"""Speed without a change of pitch, and sample rate conversion, by FFmpeg's filters."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from av.audio.frame import AudioFrame
from av.filter.graph import Graph

from kazeia_server.audio.pcm import Blocks, Samples
from kazeia_server.errors import InvalidRequest

__all__ = ["MAX_SPEED", "MIN_SPEED", "RateConverter"]

MIN_SPEED, MAX_SPEED = 0.25, 4.0
_BLOCKS_A_SECOND = 50
# atempo joins what it finds similar, and so puts the last sound up to about 20 ms late ...
_MARGIN_S = 0.02
# ... and leaves out up to 125 ms of its output at the end, unless silence follows.
_TRAILING_SILENCE_S = 0.3


class RateConverter:
    """Changes speed (pitch kept) and sample rate of one stream.

    n samples become n * output_rate / (source_rate * speed), rounded; with a speed other than 1
    20 ms more, in which the last sound ends.  The result does not depend on how the samples are
    cut into calls; nothing is held back that is longer than a block of 20 ms and what the
    filters look ahead.  Both rates equal and speed 1: the samples pass as they are.

    Rates in Hz, speed MIN_SPEED..MAX_SPEED.  Raises InvalidRequest for other speeds.
    """

    def __init__(self, source_rate: int, output_rate: int, speed: float = 1.0) -> None:
        if not MIN_SPEED <= speed <= MAX_SPEED:
            raise InvalidRequest(
                f"speed is {speed}: expected {MIN_SPEED} to {MAX_SPEED}", param="speed"
            )
        self._source_rate = source_rate
        self._output_rate = output_rate
        self._speed = speed
        filters = _tempo_filters(speed)
        if output_rate != source_rate:
            filters.append(("aresample", str(output_rate)))
        self._graph = _graph(source_rate, filters) if filters else None
        self._blocks = Blocks(max(1, source_rate // _BLOCKS_A_SECOND))
        self._n_pushed = 0  # samples at the source's rate
        self._n_given = 0  # samples at the output's rate

    def feed(self, samples: Samples) -> Samples:
        """What samples [n] in -1..1 yield, [m]; m may be 0."""
        if self._graph is None:
            return samples
        for block in self._blocks.feed(samples):
            self._push(self._graph, block)
        return self._pull(self._graph)

    def finish(self) -> Samples:
        """What was still held back, to the last sample.  Called once, after every feed."""
        graph, self._graph = self._graph, None
        if graph is None:
            return np.zeros(0, np.float32)
        self._push(graph, self._blocks.finish())
        if not self._n_pushed:
            return np.zeros(0, np.float32)
        wanted = round(self._n_pushed * self._output_rate / (self._source_rate * self._speed))
        if self._speed != 1.0:
            wanted += round(_MARGIN_S * self._output_rate)
            self._push(graph, np.zeros(round(_TRAILING_SILENCE_S * self._source_rate), np.float32))
        graph.push(None)
        missing = max(0, wanted - self._n_given)
        tail = self._pull(graph)[:missing]
        return np.pad(tail, (0, missing - len(tail)))

    def _push(self, graph: Graph, samples: Samples) -> None:
        if not len(samples):
            return
        frame = AudioFrame.from_ndarray(samples[np.newaxis], format="flt", layout="mono")
        frame.sample_rate = self._source_rate
        frame.time_base = Fraction(1, self._source_rate)
        frame.pts = self._n_pushed
        self._n_pushed += len(samples)
        graph.push(frame)

    def _pull(self, graph: Graph) -> Samples:
        parts: list[Samples] = [np.zeros(0, np.float32)]
        while True:
            try:
                frame = graph.pull()
            except (BlockingIOError, EOFError):  # nothing now; nothing any more
                break
            assert isinstance(frame, AudioFrame)
            parts.append(np.asarray(frame.to_ndarray()[0], np.float32))
        joined = np.concatenate(parts)
        self._n_given += len(joined)
        return joined


def _tempo_filters(speed: float) -> list[tuple[str, str]]:
    """Equal steps within 0.5..2: beyond that atempo leaves samples out instead of blending."""
    if speed == 1.0:
        return []
    n_steps = max(1, math.ceil(abs(math.log2(speed)) - 1e-9))
    return [("atempo", repr(speed ** (1 / n_steps)))] * n_steps


def _graph(sample_rate: int, filters: list[tuple[str, str]]) -> Graph:
    graph = Graph()
    last = graph.add(
        "abuffer",
        sample_rate=str(sample_rate),
        sample_fmt="flt",
        channel_layout="mono",
        time_base=f"1/{sample_rate}",
    )
    for name, arguments in (*filters, ("aformat", "sample_fmts=flt:channel_layouts=mono")):
        node = graph.add(name, arguments)
        last.link_to(node)
        last = node
    last.link_to(graph.add("abuffersink"))
    graph.configure()
    return graph
