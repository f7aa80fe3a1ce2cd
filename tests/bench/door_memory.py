"""Whether clients that cut their connections leave memory behind.

    python tests/bench/door_memory.py DOOR [--seconds 300] [--clients 3] [--slots 2] [--model DIR]

Serves on loopback in this process, has clients in another one ask DOOR (http, websocket,
elevenlabs, multi or wyoming) for speech and reset the connection at some moment of it, and prints
now and then what is held: resident memory after malloc has given back what it can (and before),
Python objects, threads.  Without a model it makes a tiny one.  No test: the slope is for people to
judge; caches (of prompts: 64 MB) fill first, and MALLOC_ARENA_MAX=1 takes away what malloc keeps
for each thread.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import random
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from websockets.sync.client import ClientConnection, connect

from kazeia_server.app import create_app
from kazeia_server.serving import SpeechServer, server_config
from kazeia_server.settings import Settings
from kazeia_server.synthesis.service import SynthesisService

TEXT = "Hello there, this is a test of what remains. It goes on for a second sentence. And a third."
WORDS = TEXT.split(" ")


def cut(raw: socket.socket) -> None:
    """Reset the connection: the server reads nothing more, and cannot send."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


@contextmanager
def websocket(port: int, path: str) -> Iterator[ClientConnection]:
    """A WebSocket that is reset at the end of the block."""
    with ExitStack() as stack:
        client = stack.enter_context(connect(f"ws://127.0.0.1:{port}{path}", proxy=None))
        yield client
        cut(client.socket)
        with suppress(OSError):  # of the farewell, which the reset has made impossible
            stack.close()


def text_of(rng: random.Random) -> str:
    """A text that no cache has seen."""
    return f"Number {rng.randrange(10**9)}. {TEXT}"


def ask_http(port: int, rng: random.Random) -> None:
    body = json.dumps({"text": text_of(rng), "stream": True, "max_frames": 60}).encode()
    raw = socket.create_connection(("127.0.0.1", port), timeout=20)
    raw.sendall(
        b"POST /synthesize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    for _ in range(rng.randrange(4)):
        raw.recv(4096)
    cut(raw)


def ask_websocket(port: int, rng: random.Random) -> None:
    with websocket(port, "/ws/synthesize") as client:
        client.send(json.dumps({"type": "session.config", "max_frames": 60}))
        for word in text_of(rng).split(" "):
            client.send(json.dumps({"type": "input.text", "text": word + " "}))
        if rng.random() < 0.5:
            client.send(json.dumps({"type": "input.done"}))
        for _ in range(rng.randrange(6)):
            client.recv(timeout=20)


def ask_elevenlabs(port: int, rng: random.Random, path: str = "stream-input") -> None:
    with websocket(port, f"/v1/text-to-speech/default/{path}") as client:
        for context in range(3 if path == "multi-stream-input" else 1):
            named = {"context_id": f"c{context}"}
            client.send(json.dumps({"text": " ", **named}))
            for word in text_of(rng).split(" "):
                client.send(json.dumps({"text": word + " ", **named}))
            client.send(json.dumps({"text": "And so on. ", "flush": True, **named}))
        for _ in range(rng.randrange(6)):
            client.recv(timeout=20)


def ask_multi(port: int, rng: random.Random) -> None:
    ask_elevenlabs(port, rng, "multi-stream-input")


def ask_wyoming(port: int, rng: random.Random) -> None:
    raw = socket.create_connection(("127.0.0.1", port), timeout=20)

    def send(kind: str, **data: object) -> None:
        raw.sendall(json.dumps({"type": kind, "data": data}).encode() + b"\n")

    if rng.random() < 0.5:
        send("synthesize", text=text_of(rng))
    else:
        send("synthesize-start")
        for word in text_of(rng).split(" "):
            send("synthesize-chunk", text=word + " ")
    for _ in range(rng.randrange(6)):
        raw.recv(4096)
    cut(raw)


DOORS = {
    "http": ask_http,
    "websocket": ask_websocket,
    "elevenlabs": ask_elevenlabs,
    "multi": ask_multi,
    "wyoming": ask_wyoming,
}


def be_clients(door: str, port: int, clients: int, seconds: float) -> None:
    """Ask and cut until the time is over; print how often."""
    logging.getLogger("websockets").setLevel(logging.CRITICAL)  # of what a cut does to it
    asked = Counter[str]()
    until = time.monotonic() + seconds

    def work(seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < until:
            try:
                DOORS[door](port, rng)
                asked["cut"] += 1
            except Exception as error:  # whatever it is, the next one is another connection
                asked[type(error).__name__] += 1
            time.sleep(0.05)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("clients:", dict(asked), flush=True)


def resident_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def watch(service: SynthesisService, seconds: float, trace: bool) -> None:
    """Print what is held, about twenty times."""
    began = time.monotonic()
    before = Counter[str]()
    first = None
    while (passed := time.monotonic() - began) < seconds:
        time.sleep(seconds / 20)
        gc.collect()
        objects = gc.get_objects()
        kinds = Counter(type(thing).__qualname__ for thing in objects)
        n_objects = len(objects)
        del objects
        grown = ", ".join(f"{name} +{n}" for name, n in (kinds - before).most_common(6))
        before = kinds
        resident = resident_mb()
        ctypes.CDLL(None).malloc_trim(0)  # what malloc keeps for later is given back
        print(
            f"{passed:6.0f} s  {resident_mb():6.1f} MB (before {resident:.1f})  {n_objects} objects"
            f"  {threading.active_count()} threads  {service.running} running  {grown}",
            flush=True,
        )
        if trace:
            now = tracemalloc.take_snapshot()
            if first is not None:
                for line in now.compare_to(first, "lineno")[:5]:
                    print("         ", line, flush=True)
            elif passed > seconds / 5:
                first = now


@contextmanager
def a_model(given: Path | None) -> Iterator[Path]:
    """The folder of a model: the one given, or a tiny one of noise."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        kazeia = str(Path(sys.executable).with_name("kazeia"))
        subprocess.run([kazeia, "synth", "--size", "tiny", "-o", folder], check=True)
        yield Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("door", choices=sorted(DOORS))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--slots", type=int, default=2, help="utterances made at once")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--trace", action="store_true", help="where Python allocated what grew")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)  # of the client's process
    arguments = parser.parse_args()
    if arguments.port is not None:
        be_clients(arguments.door, arguments.port, arguments.clients, arguments.seconds)
        return
    with a_model(arguments.model) as model:
        settings = Settings(
            model=model,
            port=0,
            wyoming_port=0,
            log_level="error",
            threads=1,
            max_concurrent=arguments.slots,
            max_queue=1000,
        )
        app = create_app(settings)
        server = SpeechServer(server_config(app, settings), app)
        thread = threading.Thread(target=server.run)
        thread.start()
        while app.state.service.state != "ready" or not server.started:
            assert app.state.service.state != "failed"
            time.sleep(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        if arguments.door == "wyoming":
            port = app.state.wyoming.port
        command = [sys.executable, __file__, arguments.door, "--port", str(port)]
        command += ["--seconds", str(arguments.seconds), "--clients", str(arguments.clients)]
        clients = subprocess.Popen(command)
        if arguments.trace:
            tracemalloc.start()
        try:
            watch(app.state.service, arguments.seconds + 10, arguments.trace)
        finally:
            clients.wait(60)
            server.should_exit = True
            thread.join(30)


if __name__ == "__main__":
    main()
