from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import numpy as np
import pytest
from fake_voice import FRAME, FakeVoice

from kazeia_server.audio.pcm import pcm16
from kazeia_server.errors import (
    Busy,
    EngineFailure,
    InvalidRequest,
    NotReady,
    ShuttingDown,
    VoiceLoadError,
)
from kazeia_server.settings import Settings
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.synthesis.service import SynthesisService

T = TypeVar("T")
HELLO = SynthesisRequest(text="Hello.")


def run(test: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(test(), 20)

    return asyncio.run(bounded())


@asynccontextmanager
async def running(voice: FakeVoice, **settings: object) -> AsyncIterator[SynthesisService]:
    gate, voice.gate = voice.gate, None  # the warm-up passes
    n_chunks, voice.n_chunks = voice.n_chunks, 1
    service = SynthesisService(Settings(**settings), lambda _: voice)  # type: ignore[arg-type]
    service.start()
    assert await service.settled() == "ready"
    voice.gate, voice.n_chunks = gate, n_chunks
    voice.requests.clear()
    voice.streams.clear()
    voice.most_open = 0
    try:
        yield service
    finally:
        await service.close()


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "this never came true"
        await asyncio.sleep(0.002)


async def speak(service: SynthesisService, request: SynthesisRequest = HELLO) -> list[bytes]:
    async with service.speak(request, door="test") as utterance:
        return [pcm async for pcm in utterance]


def test_chunks_come_in_order_and_stats_after_them() -> None:
    async def test() -> None:
        voice = FakeVoice(n_chunks=40)  # more than may be on the way at once
        async with running(voice) as service, service.speak(HELLO, door="test") as utterance:
            assert utterance.stats is None
            parts = [pcm async for pcm in utterance]
            assert [pcm async for pcm in utterance] == []
            expected = [pcm16(voice.streams[0].samples(n)) for n in range(40)]
            assert parts == expected
            assert utterance.stats is not None
            assert utterance.stats.n_chunks == 40

    run(test)


def test_a_reader_that_does_not_read_stops_only_its_own_voice() -> None:
    async def test() -> None:
        voice = FakeVoice(n_chunks=None)
        async with running(voice, max_concurrent=2) as service:
            async with service.speak(HELLO, door="test"):
                await until(lambda: voice.streams[0].made >= 8)
                await asyncio.sleep(0.1)
                assert voice.streams[0].made <= 9
                voice.n_chunks = 30
                assert len(await speak(service)) == 30
                assert voice.streams[0].made <= 9
            await until(lambda: voice.open_now == 0)

    run(test)


def test_leaving_the_block_cancels_and_frees_the_slot() -> None:
    async def test() -> None:
        voice = FakeVoice(n_chunks=None, delay_s=0.001)
        async with running(voice, max_concurrent=1, max_queue=0) as service:
            for _ in range(20):
                async with service.speak(HELLO, door="test") as utterance:
                    await utterance.__anext__()
                assert service.running == 0
                assert voice.open_now == 0
            assert voice.most_open == 1

    run(test)


def test_cancelling_the_task_frees_the_slot() -> None:
    async def test() -> None:
        voice = FakeVoice(n_chunks=None, delay_s=0.001)
        async with running(voice, max_concurrent=1) as service:
            task = asyncio.create_task(speak(service))
            await until(lambda: voice.open_now == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (service.running, voice.open_now) == (0, 0)

    run(test)


def test_a_blocked_voice_is_woken_by_cancel() -> None:
    async def test() -> None:
        voice = FakeVoice(gate=threading.Event())
        async with running(voice) as service:
            async with service.speak(HELLO, door="test"):
                await until(lambda: voice.open_now == 1)
            assert voice.open_now == 0

    run(test)


def test_admission_is_bounded_and_first_come_first_served() -> None:
    async def test() -> None:
        gate = threading.Event()
        voice = FakeVoice(n_chunks=1, gate=gate)
        async with running(voice, max_concurrent=2, max_queue=3) as service:
            names = [SynthesisRequest(text=f"text {n}") for n in range(5)]
            tasks = []
            for request in names:
                tasks.append(asyncio.create_task(speak(service, request)))
                await asyncio.sleep(0)
            await until(lambda: service.running == 2 and service.waiting == 3)
            with pytest.raises(Busy):
                await speak(service)
            tasks[3].cancel()
            await until(lambda: service.waiting == 2)
            gate.set()
            await asyncio.gather(*tasks, return_exceptions=True)
            spoken = [request.text for request in voice.requests]
            assert sorted(spoken[:2]) == ["text 0", "text 1"]
            assert spoken[2:] == ["text 2", "text 4"] or set(spoken[2:]) == {"text 2", "text 4"}
            assert voice.most_open <= 2
            assert (service.running, service.waiting) == (0, 0)

    run(test)


def test_eight_at_once_with_two_slots() -> None:
    async def test() -> None:
        voice = FakeVoice(n_chunks=5, delay_s=0.002)
        async with running(voice, max_concurrent=2, max_queue=6) as service:
            results = await asyncio.gather(*(speak(service) for _ in range(8)))
            assert all(len(parts) == 5 for parts in results)
            assert voice.most_open == 2

    run(test)


@pytest.mark.parametrize(
    ("voice", "error"),
    [
        (FakeVoice(fail_at=0), EngineFailure),
        (FakeVoice(fail_at=2), EngineFailure),
        (FakeVoice(fail_at=1, error=InvalidRequest("unspeakable")), InvalidRequest),
    ],
)
def test_failures_reach_the_reader_and_free_the_slot(
    voice: FakeVoice, error: type[Exception]
) -> None:
    async def test() -> None:
        fail_at, voice.fail_at = voice.fail_at, None
        async with running(voice, max_concurrent=1) as service:
            voice.fail_at = fail_at
            with pytest.raises(error):
                await speak(service)
            assert service.running == 0
            voice.fail_at = None
            assert len(await speak(service)) == 3

    run(test)


def test_failing_to_open_frees_the_slot() -> None:
    async def test() -> None:
        voice = FakeVoice()
        async with running(voice, max_concurrent=1) as service:
            voice.fail_open = InvalidRequest("no")
            for _ in range(3):
                with pytest.raises(InvalidRequest):
                    await speak(service)
            voice.fail_open = None
            assert len(await speak(service)) == 3

    run(test)


@pytest.mark.alone
def test_the_loop_never_waits_for_the_voice() -> None:
    async def test() -> None:
        voice = FakeVoice(n_chunks=3, delay_s=0.1)
        async with running(voice) as service:
            task = asyncio.create_task(speak(service))
            longest = 0.0
            while not task.done():
                begun = time.perf_counter()
                await asyncio.sleep(0.001)
                longest = max(longest, time.perf_counter() - begun)
            assert longest < 0.08

    run(test)


def test_nothing_is_spoken_before_the_voice_is_loaded() -> None:
    async def test() -> None:
        gate = threading.Event()
        voice = FakeVoice()

        def load(_: Settings) -> FakeVoice:
            assert gate.wait(10)
            return voice

        service = SynthesisService(Settings(), load)
        service.start()
        with pytest.raises(NotReady):
            await speak(service)
        with pytest.raises(NotReady):
            _ = service.info
        gate.set()
        assert await service.settled() == "ready"
        assert len(await speak(service)) == 3
        await service.close()
        assert voice.closed
        with pytest.raises(ShuttingDown):
            await speak(service)

    run(test)


@pytest.mark.parametrize("error", [VoiceLoadError("key x is missing"), RuntimeError("key x")])
def test_a_voice_that_cannot_be_loaded(error: Exception) -> None:
    async def test() -> None:
        def load(_: Settings) -> FakeVoice:
            raise error

        service = SynthesisService(Settings(), load)
        service.start()
        assert await service.settled() == "failed"
        with pytest.raises(VoiceLoadError, match="key x"):
            await speak(service)
        await service.close()

    run(test)


def test_close_ends_what_runs_and_what_waits() -> None:
    async def test() -> None:
        voice = FakeVoice(n_chunks=None, delay_s=0.001)
        async with running(voice, max_concurrent=1) as service:
            tasks = [asyncio.create_task(speak(service)) for _ in range(3)]
            await until(lambda: service.running == 1 and service.waiting == 2)
            begun = time.perf_counter()
            await service.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert time.perf_counter() - begun < 2
            assert all(isinstance(result, ShuttingDown) for result in results)
            assert voice.open_now == 0

    run(test)


def test_close_does_not_wait_for_a_deaf_voice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kazeia_server.synthesis.service._CLOSE_DEADLINE_S", 0.2)

    async def test() -> None:
        gate = threading.Event()
        voice = FakeVoice(gate=gate, deaf=True)
        async with running(voice) as service:
            task = asyncio.create_task(speak(service))
            await until(lambda: voice.open_now == 1)
            task.cancel()
            begun = time.perf_counter()
            await service.close()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.perf_counter() - begun < 2
        gate.set()

    run(test)


def test_audio_is_whole_samples() -> None:
    async def test() -> None:
        async with running(FakeVoice()) as service:
            for pcm in await speak(service):
                assert len(pcm) == 2 * FRAME
                assert np.abs(np.frombuffer(pcm, "<i2")).max() > 10_000

    run(test)


def test_what_is_being_loaded_is_waited_for_at_the_end() -> None:
    """A process that ends inside a library's thread may be aborted."""
    go_on, inside = threading.Event(), threading.Event()

    def load(settings: Settings) -> FakeVoice:
        inside.set()
        go_on.wait(10)
        return FakeVoice()

    async def left_early() -> SynthesisService:
        service = SynthesisService(Settings(), load)
        service.start()
        await asyncio.to_thread(inside.wait, 10)
        await service.close()
        return service

    service = asyncio.run(left_early())
    service.join(0.05)
    assert any(thread.name == "kazeia-work" for thread in threading.enumerate())
    go_on.set()
    service.join(10)
    assert not any(thread.name == "kazeia-work" for thread in threading.enumerate())
