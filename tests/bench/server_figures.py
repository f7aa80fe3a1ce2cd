"""What the server adds to its voice, and what it costs to keep running.

    python tests/bench/server_figures.py [--model DIR] [--quick]

Starts `kazeia serve` on loopback and prints one line a figure.  No test: the machine decides.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import connect

TEXT = "Hello there, this is a test."


@contextmanager
def serving(model: Path | None) -> Iterator[tuple[str, int]]:
    """A server of its own: its address and process id."""
    command = [str(Path(sys.executable).with_name("kazeia")), "serve", "--port", "0"]
    command += ["--wyoming-port", "off", *(["--model", str(model)] if model else [])]
    environment = {**os.environ, "KZTTS_MAX_QUEUE": "300"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    address = ""
    for line in process.stderr:
        if "running on" in line:
            address = line.split("http://")[1].split()[0]
        if address and ("ready after" in line or "no voice" in line):
            break
    drain = threading.Thread(target=lambda: list(process.stderr or ()), daemon=True)
    drain.start()
    try:
        until_ready(address)
        yield address, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def until_ready(address: str) -> None:
    """Wait until speech can be asked for."""
    while httpx.get(f"http://{address}/readyz", trust_env=False).status_code != 200:
        time.sleep(0.1)


def resident_mb(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def utterance(client: Any, options: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Seconds from the last text to the first audio, and audio.done."""
    client.send(json.dumps({"type": "session.config", **options}))
    began = time.perf_counter()
    client.send(json.dumps({"type": "input.text", "text": TEXT}))
    client.send(json.dumps({"type": "input.done"}))
    first = None
    done: dict[str, Any] = {}
    while True:
        message = client.recv(timeout=120)
        if isinstance(message, bytes):
            first = first or time.perf_counter() - began
            continue
        told = json.loads(message)
        if told["type"] == "audio.done":
            done = told
        elif told["type"] == "session.done":
            assert first is not None
            return first, done
        elif told["type"] == "error":
            raise RuntimeError(told["message"])


def websocket_overhead(address: str, options: dict[str, Any], n: int, mode: str) -> None:
    """First audio of utterances on one socket, and what of it is not the voice's."""
    added, heard = [], []
    with connect(f"ws://{address}/ws/synthesize", proxy=None) as client:
        for _ in range(n):
            first, done = utterance(client, {**options, "text_mode": mode})
            heard.append(first * 1e3)
            added.append((first - done["voice_ttfb_s"]) * 1e3)
    print(
        f"WebSocket, text mode {mode}: first audio median {statistics.median(heard):.1f} ms; added "
        f"by the server median {statistics.median(added):.2f}, p90 {percentile(added, 0.9):.2f} ms "
        f"({n} utterances)"
    )


def http_overhead(address: str, options: dict[str, Any], n: int) -> None:
    """First audio of streamed answers, and the voice's own time in complete ones."""
    heard, voice = [], []
    with httpx.Client(trust_env=False, timeout=120) as client:
        for _ in range(n):
            began = time.perf_counter()
            body = {"text": TEXT, "response_format": "pcm", **options}
            url = f"http://{address}/synthesize?stream=1"
            with client.stream("POST", url, json=body) as response:
                chunks = response.iter_raw()
                next(chunks)
                heard.append((time.perf_counter() - began) * 1e3)
                for _chunk in chunks:
                    pass
            whole = client.post(f"http://{address}/synthesize", json={"text": TEXT, **options})
            voice.append(float(whole.headers["x-kazeia-voice-ttfb"]) * 1e3)
    print(
        f"HTTP stream: first audio median {statistics.median(heard):.1f} ms, voice alone median "
        f"{statistics.median(voice):.1f} ms (of as many complete answers); added by the server "
        f"{statistics.median(heard) - statistics.median(voice):.2f} ms ({n} requests)"
    )


def loop_stall(address: str, options: dict[str, Any], seconds: float) -> None:
    """Answer time of /health while two streams are being made."""
    stop = threading.Event()

    def speak() -> None:
        with connect(f"ws://{address}/ws/synthesize", proxy=None) as client:
            while not stop.is_set():
                utterance(client, options)

    speakers = [threading.Thread(target=speak) for _ in range(2)]
    for thread in speakers:
        thread.start()
    times = []
    end = time.perf_counter() + seconds
    with httpx.Client(trust_env=False, timeout=30) as client:
        while time.perf_counter() < end:
            began = time.perf_counter()
            client.get(f"http://{address}/health")
            times.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.01)
        metrics = client.get(f"http://{address}/metrics").text
    stop.set()
    for thread in speakers:
        thread.join()
    print(
        f"/health beside two streams: median {statistics.median(times):.1f} ms, "
        f"p99 {percentile(times, 0.99):.1f} ms, max {max(times):.1f} ms ({len(times)} asked)"
    )
    counts = {}
    for line in metrics.splitlines():
        if line.startswith("kazeia_event_loop_lag_seconds_bucket"):
            counts[float(line.split('le="')[1].split('"')[0])] = float(line.split()[-1])
    if counts:
        total = counts[max(counts)]
        within = min(edge for edge, n in counts.items() if n >= 0.99 * total)
        print(f"event loop lag: 99 % within {within * 1e3:.0f} ms ({total:.0f} samples)")


def memory(address: str, pid: int, options: dict[str, Any], n: int) -> None:
    """Resident memory over many requests, and over many that were dropped on the way."""
    body = {"text": "Hello.", **options}
    with httpx.Client(trust_env=False, timeout=120) as client:
        for i in range(n):
            client.post(f"http://{address}/synthesize", json=body).raise_for_status()
            if i == 99:
                after_100 = resident_mb(pid)
        after_all = resident_mb(pid)
        print(
            f"memory: {after_100:.1f} MB after 100 requests, "
            f"{after_all - after_100:+.1f} MB after {n - 100} more"
        )
        answered = 0
        for _ in range(50):  # memory for longer texts than before
            drop_http(address, options)
            drop_websocket(address, options)
        after_all = resident_mb(pid)
        for i in range(200):
            (drop_http if i % 2 else drop_websocket)(address, options)
            if i % 10 == 0:
                answered += client.get(f"http://{address}/health").status_code == 200
        time.sleep(1)
        health = client.get(f"http://{address}/health").json()
    print(
        f"200 streams dropped after their first audio: /health answered {answered} of 20, running "
        f"{health['running']}, waiting {health['waiting']}, "
        f"memory {resident_mb(pid) - after_all:+.1f} MB"
    )


def drop_http(address: str, options: dict[str, Any]) -> None:
    """Leave a streamed answer that would go on for a long time."""
    body = {**options, "text": TEXT * 30, "response_format": "pcm", "max_frames": 2000}
    url = f"http://{address}/synthesize?stream=1"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=120) as response:
        next(response.iter_raw())


def drop_websocket(address: str, options: dict[str, Any]) -> None:
    """The same on a WebSocket, without a word of farewell."""
    with connect(f"ws://{address}/ws/synthesize", proxy=None) as client:
        client.send(json.dumps({"type": "session.config", **options, "max_frames": 2000}))
        client.send(json.dumps({"type": "input.text", "text": TEXT * 30}))
        while not isinstance(client.recv(timeout=120), bytes):
            pass
        client.socket.shutdown(socket.SHUT_RDWR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions")
    arguments = parser.parse_args()
    logging.getLogger("websockets").setLevel(logging.CRITICAL)  # it is this side that breaks off
    share = 10 if arguments.quick else 1
    options: dict[str, Any] = {}
    if arguments.model:
        options = {"max_frames": 8, "chunk": 1}
    with serving(arguments.model) as (address, pid):
        for mode in ("streaming", "whole"):
            websocket_overhead(address, options, 60 // share, mode)
        http_overhead(address, {**options, "text_mode": "whole"}, 40 // share)
        loop_stall(address, options, 30 / share)
        memory(address, pid, {"max_frames": 2} if arguments.model else {}, 1000 // share + 100)


if __name__ == "__main__":
    main()
