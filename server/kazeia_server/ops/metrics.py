"""Prometheus metrics, in a registry of their own for each application."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kazeia_server import __version__
from kazeia_server.ops.sessions import SessionLimit
from kazeia_server.synthesis.report import UtteranceReport
from kazeia_server.synthesis.service import SynthesisService

__all__ = ["Metrics", "router"]

router = APIRouter()

_TTFB_BUCKETS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
_QUEUE_BUCKETS = (0.001, 0.01, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
_RTF_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_AUDIO_BUCKETS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_LAG_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_LAG_PERIOD_S = 0.25


class Metrics:
    """What an application counts.  `observe` and `watch_loop` belong to its event loop."""

    def __init__(self, service: SynthesisService, sessions: SessionLimit) -> None:
        self.registry = CollectorRegistry()
        self._count_state(service, sessions)
        r = self.registry
        self._requests = Counter(
            "kazeia_requests",
            "Utterances asked for, by door and outcome",
            ["door", "outcome"],
            registry=r,
        )
        self._errors = Counter(
            "kazeia_errors", "Utterances refused or failed, by error code", ["code"], registry=r
        )
        self._finish = Counter(
            "kazeia_finish", "Utterances by the reason for which they ended", ["reason"], registry=r
        )
        self._cancelled = Counter(
            "kazeia_cancelled", "Utterances given up by their clients", registry=r
        )
        self._ttfb = Histogram(
            "kazeia_ttfb_seconds",
            "From the first words to the first audio, without the wait for a slot",
            buckets=_TTFB_BUCKETS,
            registry=r,
        )
        self._queue = Histogram(
            "kazeia_queue_seconds", "Waiting for a slot", buckets=_QUEUE_BUCKETS, registry=r
        )
        self._rtf = Histogram(
            "kazeia_rtf", "Seconds of work a second of audio", buckets=_RTF_BUCKETS, registry=r
        )
        self._length = Histogram(
            "kazeia_utterance_audio_seconds",
            "Audio of an utterance",
            buckets=_AUDIO_BUCKETS,
            registry=r,
        )
        self._audio = Counter("kazeia_audio_seconds", "Audio made", registry=r)
        self._characters = Counter("kazeia_characters", "Characters of text admitted", registry=r)
        self._underruns = Counter(
            "kazeia_underruns", "Times a listener at real time had nothing to play", registry=r
        )
        self._underrun_s = Counter(
            "kazeia_underrun_seconds", "For how long listeners had nothing to play", registry=r
        )
        self._retries = Counter(
            "kazeia_retries", "Pieces of text made again with another seed", registry=r
        )
        self._pieces = Counter("kazeia_pieces", "Pieces of text made", registry=r)
        self._stages = Counter(
            "kazeia_stage_seconds", "Work by stage of the voice", ["stage"], registry=r
        )
        self._lag = Histogram(
            "kazeia_event_loop_lag_seconds",
            f"How late a timer of {_LAG_PERIOD_S} s fires",
            buckets=_LAG_BUCKETS,
            registry=r,
        )

    def observe(self, report: UtteranceReport) -> None:
        """Count one utterance that is over."""
        self._requests.labels(report.door, report.outcome).inc()
        if report.outcome == "cancelled":
            self._cancelled.inc()
        if report.error_code is not None:
            self._errors.labels(report.error_code).inc()
        if report.outcome == "refused":
            return
        if report.ended is not None:
            self._finish.labels(report.ended).inc()
        self._queue.observe(report.queue_s)
        self._characters.inc(report.characters)
        if report.ttfb_s is not None:
            self._ttfb.observe(report.ttfb_s)
        if report.rtf is not None:
            self._rtf.observe(report.rtf)
        if report.outcome == "ok":
            self._length.observe(report.audio_s)
        self._audio.inc(report.audio_s)
        self._underruns.inc(report.underruns)
        self._underrun_s.inc(report.underrun_s)
        self._retries.inc(report.retries)
        self._pieces.inc(report.pieces)
        for stage, seconds in report.stages.items():
            self._stages.labels(stage).inc(seconds)

    async def watch_loop(self) -> None:
        """Measure for ever how late the event loop runs."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            self._lag.observe(max(0.0, loop.time() - due))

    def _count_state(self, service: SynthesisService, sessions: SessionLimit) -> None:
        """Gauges that are looked up when they are asked for."""
        r = self.registry
        ProcessCollector(registry=r)
        r.register(_About(service))
        for name, meaning, value in (
            ("kazeia_requests_running", "Utterances being made", lambda: service.running),
            ("kazeia_requests_waiting", "Utterances in line", lambda: service.waiting),
            ("kazeia_sessions", "Open WebSockets and Wyoming connections", lambda: sessions.active),
            ("kazeia_ready", "1 while speech can be asked for", lambda: service.state == "ready"),
        ):
            Gauge(name, meaning, registry=r).set_function(value)


class _About(Collector):
    """What runs here; the model has no name before it is loaded."""

    def __init__(self, service: SynthesisService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        labels = ("version", "model", "voice_source")
        about = GaugeMetricFamily("kazeia_info", "Always 1", labels=labels)
        about.add_metric((__version__, self._service.model or "", self._service.source), 1)
        yield about


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={
        200: {
            "description": "the text format, or OpenMetrics where it is accepted",
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                "application/openmetrics-text": {"schema": {"type": "string"}},
            },
        }
    },
)
def metrics(request: Request) -> Response:
    """What has been counted since the start; in a worker thread, as it reads /proc."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    registry: CollectorRegistry = request.app.state.metrics.registry
    return Response(encode(registry), media_type=content_type)
