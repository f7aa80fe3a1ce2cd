from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from fake_voice import FakeVoice
from prometheus_client.parser import text_string_to_metric_families as parse

from kazeia_server.ops.metrics import Metrics
from kazeia_server.ops.sessions import SessionLimit
from kazeia_server.settings import Settings
from kazeia_server.synthesis.report import UtteranceReport
from kazeia_server.synthesis.service import SynthesisService

GOOD = UtteranceReport(
    door="websocket",
    outcome="ok",
    ended="eos",
    error_code=None,
    characters=12,
    voice="anna",
    queue_s=0.02,
    wall_s=1.0,
    ttfb_s=0.12,
    rtf=0.5,
    audio_s=2.5,
    underruns=2,
    underrun_s=0.25,
    retries=1,
    pieces=3,
    stages={"talker": 0.75, "decoder": 0.25},
)


def made() -> tuple[Metrics, SessionLimit]:
    sessions = SessionLimit(4)
    return Metrics(SynthesisService(Settings(), load=lambda _: FakeVoice()), sessions), sessions


def values(metrics: Metrics) -> dict[str, float]:
    """Sample with its labels -> value."""
    from prometheus_client import generate_latest

    found = {}
    for family in parse(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_a_good_utterance() -> None:
    metrics, _ = made()
    metrics.observe(GOOD)
    metrics.observe(GOOD)
    found = values(metrics)
    assert found["kazeia_requests_total{door=websocket,outcome=ok}"] == 2
    assert found["kazeia_finish_total{reason=eos}"] == 2
    assert found["kazeia_ttfb_seconds_count"] == 2
    assert found["kazeia_ttfb_seconds_sum"] == pytest.approx(0.24)
    assert found["kazeia_ttfb_seconds_bucket{le=0.1}"] == 0
    assert found["kazeia_ttfb_seconds_bucket{le=0.15}"] == 2
    assert found["kazeia_rtf_sum"] == pytest.approx(1.0)
    assert found["kazeia_queue_seconds_sum"] == pytest.approx(0.04)
    assert found["kazeia_audio_seconds_total"] == pytest.approx(5.0)
    assert found["kazeia_characters_total"] == 24
    assert found["kazeia_underruns_total"] == 4
    assert found["kazeia_underrun_seconds_total"] == pytest.approx(0.5)
    assert found["kazeia_retries_total"] == 2
    assert found["kazeia_pieces_total"] == 6
    assert found["kazeia_stage_seconds_total{stage=talker}"] == pytest.approx(1.5)
    assert found["kazeia_stage_seconds_total{stage=decoder}"] == pytest.approx(0.5)
    assert found["kazeia_cancelled_total"] == 0
    assert not any(name.startswith("kazeia_errors_total") for name in found)


def test_a_refusal_counts_as_nothing_but_that() -> None:
    metrics, _ = made()
    refused = replace(GOOD, outcome="refused", ended=None, error_code="busy", audio_s=0.0)
    metrics.observe(refused)
    found = values(metrics)
    assert found["kazeia_requests_total{door=websocket,outcome=refused}"] == 1
    assert found["kazeia_errors_total{code=busy}"] == 1
    assert found["kazeia_ttfb_seconds_count"] == 0
    assert found["kazeia_queue_seconds_count"] == 0
    assert found["kazeia_audio_seconds_total"] == 0


def test_cancellations_and_failures() -> None:
    metrics, _ = made()
    nothing = replace(GOOD, ttfb_s=None, rtf=None, audio_s=0.0, ended=None)
    metrics.observe(replace(nothing, outcome="cancelled"))
    metrics.observe(replace(nothing, outcome="error", error_code="engine_error"))
    found = values(metrics)
    assert found["kazeia_cancelled_total"] == 1
    assert found["kazeia_requests_total{door=websocket,outcome=cancelled}"] == 1
    assert found["kazeia_errors_total{code=engine_error}"] == 1
    assert found["kazeia_ttfb_seconds_count"] == 0


def test_the_state_is_looked_up_when_asked_for() -> None:
    metrics, sessions = made()
    assert values(metrics)["kazeia_sessions"] == 0
    with sessions.session():
        assert values(metrics)["kazeia_sessions"] == 1
    found = values(metrics)
    assert found["kazeia_sessions"] == 0
    assert found["kazeia_requests_running"] == 0
    assert found["kazeia_requests_waiting"] == 0
    assert found["kazeia_ready"] == 0  # nothing has been loaded
    assert found["process_resident_memory_bytes"] > 0
    (info,) = [name for name in found if name.startswith("kazeia_info")]
    assert "model=," in info  # not known yet
    assert "voice_source=built-in" in info


def test_applications_share_nothing() -> None:
    first, _ = made()
    second, _ = made()
    first.observe(GOOD)
    assert values(second)["kazeia_audio_seconds_total"] == 0


def test_the_lag_of_the_loop_is_measured() -> None:
    metrics, _ = made()

    async def run() -> None:
        watching = asyncio.create_task(metrics.watch_loop())
        await asyncio.sleep(0.05)
        time.sleep(0.6)  # noqa: ASYNC251 - what is to be noticed
        await asyncio.sleep(0.01)
        watching.cancel()

    asyncio.run(run())
    found = values(metrics)
    assert found["kazeia_event_loop_lag_seconds_sum"] > 0.2
