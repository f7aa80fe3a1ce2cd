"""What a server, or what poses as one, must not be able to do: odd numbers, JSON and frames."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from client_tools import DONE, OVER, SHORT, START, Naps, answering, scripted, scripted_socket
from websockets.sync.server import ServerConnection

from kazeia_client import (
    AnswerTimeout,
    AsyncClient,
    AudioFormat,
    Client,
    Retry,
    Unavailable,
    UnexpectedAnswer,
    UsageError,
    WavWriter,
    connecting,
)
from kazeia_client.cli import main
from kazeia_client.errors import error_of_answer, error_of_message

NEVER = Retry(budget_s=0)
PCM = AudioFormat("pcm", 24_000)
DEEP = b"[" * 200_000
SPEECH = {
    "content-type": "audio/pcm",
    "x-kazeia-sample-rate": "24000",
    "x-kazeia-ended": "eos",
    "x-kazeia-audio-seconds": "0.1",
    "x-kazeia-frames": "1",
    "x-kazeia-chunks": "1",
}
VOICES: dict[str, Any] = {
    "voices": [],
    "languages": [],
    "model": "m",
    "voice_source": "built-in",
    "sample_rate": 24_000,
    "follows_instructions": False,
}


# ---- seconds ---------------------------------------------------------------------


@pytest.mark.parametrize("odd", ["NaN", "Infinity", "-Infinity", "1e999", "-1", "true", '"x"'])
def test_odd_seconds_of_a_message_are_none(odd: str) -> None:
    message = json.loads(f'{{"code": "busy", "retry_after_s": {odd}}}')
    assert error_of_message(message).__dict__["retry_after_s"] is None


def test_a_message_may_name_more_than_a_float_holds() -> None:
    assert error_of_message({"retry_after_s": 10**400}).retry_after_s is None
    assert error_of_message({"retry_after_s": 2}).retry_after_s == 2.0


@pytest.mark.parametrize(
    "odd",
    [
        "nan",
        "inf",
        "-1",
        "9" * 5000,
        "1e400",
        "Thu, 01 Jan 99999 00:00:00 GMT",
        "Thu, 99999999999999999999 Jan 2030 00:00:00 GMT",
        "Thu, 01 Jan 2030 00:00:00 +99999999999",
        "",
        "\u0663 days",
    ],
)
def test_an_odd_retry_after_is_none(odd: str) -> None:
    error = error_of_answer(503, {"retry-after": odd}, b"")
    assert isinstance(error, Unavailable)
    assert error.retry_after_s is None


def test_a_retry_after_without_a_zone_is_of_utc() -> None:
    error = error_of_answer(503, {"retry-after": "Mon, 01 Jan 2001 00:00:00 -0000"}, b"")
    assert isinstance(error, Unavailable)
    assert error.retry_after_s == 0.0


def test_no_number_leads_to_endless_tries() -> None:
    """A busy server that asks for a wait of NaN seconds is tried as one that asks for none."""
    naps = Naps()
    busy = '{"type": "error", "code": "busy", "message": "busy", "retry_after_s": NaN}'

    def refuse(connection: ServerConnection) -> None:
        connection.send(busy)

    with scripted_socket(refuse) as port:
        with Client(f"http://127.0.0.1:{port}", retry=naps.retry(budget_s=2)) as client:
            with pytest.raises(Unavailable):
                client.stream("Hello.").read()
    assert 0 < sum(naps.naps) <= 2


@pytest.mark.parametrize("odd", [math.nan, math.inf, -1.0, "3", None])
def test_seconds_that_no_clock_can_count(odd: Any) -> None:
    for name in ("budget_s", "base_s", "max_s"):
        with pytest.raises(UsageError, match="finite seconds"):
            Retry(**{name: odd})
    for name in ("timeout_s", "patience_s"):
        with pytest.raises(UsageError, match=f"{name}.*finite seconds"):
            AsyncClient(**{name: odd})
    with Client("http://127.0.0.1:1") as client, pytest.raises(UsageError, match="finite seconds"):
        client.wait_until_ready(odd)


def test_a_wait_of_no_seconds_and_a_buffer_of_less_than_nothing() -> None:
    for options in ({"timeout_s": 0}, {"patience_s": 0.0}):
        with pytest.raises(UsageError, match="above 0"):
            AsyncClient(**options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="max_buffered"):
        Client(max_buffered=-1)


@pytest.mark.parametrize("odd", ["nan", "inf", "-1"])
def test_a_wait_that_the_command_refuses(odd: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--url", "http://127.0.0.1:1", f"--wait={odd}"]) == 2
    assert "finite seconds" in capsys.readouterr().err


def test_an_answer_that_trickles_in_is_late() -> None:
    """A byte now and then is no answer, however long it goes on."""

    def trickle(connection: ServerConnection) -> None:
        for data in connection:
            if json.loads(data)["type"] == "ping":
                connection.send('{"type": "pong"}')
            elif json.loads(data)["type"] == "input.done":
                break
        for _ in range(100):
            connection.send('{"type": "something.new"}')
            time.sleep(0.05)

    with scripted_socket(trickle) as port:
        with Client(f"http://127.0.0.1:{port}", retry=NEVER, patience_s=0.3) as client:
            with pytest.raises(AnswerTimeout):
                client.stream("Hello.").read()


# ---- answers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        DEEP,
        b"\xff",
        json.dumps({**VOICES, "sample_rate": math.inf}).encode(),
        json.dumps({**VOICES, "sample_rate": math.nan}).encode(),
        json.dumps({**VOICES, "sample_rate": -1}).encode(),
        json.dumps({**VOICES, "voices": 3}).encode(),
        json.dumps({**VOICES, "voices": [[]]}).encode(),
        b'{"sample_rate": ' + b"9" * 6000 + b"}",
    ],
)
def test_odd_answers(body: bytes) -> None:
    with scripted((200, {}, body), (200, {}, body)) as (url, _), Client(url, retry=NEVER) as client:
        for ask in (client.voices, client.health):
            with pytest.raises(UnexpectedAnswer):
                ask()


def test_a_deep_error() -> None:
    with scripted((500, {}, DEEP)) as (url, _), Client(url, retry=NEVER) as client:
        with pytest.raises(UnexpectedAnswer, match="status 500"):
            client.voices()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in ("sample-rate", "frames", "chunks", "audio-seconds", "rtf", "ttfb")
        for value in ("nan", "inf", "9" * 5000, "-1", "many")
    ]
    + [("sample-rate", "0"), ("sample-rate", "4294967296"), ("frames", "1.5")],
)
def test_odd_headers(name: str, value: str) -> None:
    answer = (200, {**SPEECH, f"x-kazeia-{name}": value}, SHORT)
    with scripted(answer) as (url, _), Client(url, retry=NEVER) as client:
        with pytest.raises(UnexpectedAnswer) as caught:
            client.synthesize("Hello.", response_format="pcm")
    assert len(str(caught.value)) < 300


def test_half_a_sample_at_the_end_of_an_answer() -> None:
    with scripted((200, SPEECH, b"\1\2\3"), (200, SPEECH, SHORT)) as (url, _):
        with Client(url, retry=NEVER) as client:
            with pytest.raises(UnexpectedAnswer, match="within a sample"):
                client.synthesize("Hello.", response_format="pcm")
            assert client.synthesize("Hello.", response_format="pcm").pcm == SHORT


# ---- messages --------------------------------------------------------------------


def streamed(*frames: str | bytes | dict[str, Any]) -> bytes:
    with scripted_socket(answering(*frames)) as port:
        with Client(f"http://127.0.0.1:{port}", retry=NEVER, patience_s=20) as client:
            return client.stream("Hello.").read()


def test_a_session_that_is_well() -> None:
    assert streamed(START, SHORT, DONE, OVER) == SHORT


@pytest.mark.parametrize(
    "frames",
    [
        (DEEP.decode(),),
        ('{"type": "error", "a": ' + DEEP.decode(),),
        ({**START, "sample_rate": math.inf},),
        ({**START, "sample_rate": math.nan},),
        ({**START, "sample_rate": 0},),
        ({**START, "sample_rate": -24_000},),
        ({**START, "sample_rate": 2**33},),
        ({**START, "sample_rate": 10**400},),
        ({**START, "channels": 0},),
        ({**START, "channels": 2**16},),
        (START, {**DONE, "audio_s": math.inf}),
        (START, {**DONE, "audio_s": 10**400}),
        (START, {**DONE, "frames": math.nan}),
        (START, {**DONE, "rtf": 10**400}),
        (START, {**DONE, "warnings": 3}),
        (START, b"\1\2\3", DONE, OVER),
        ({**START, "channels": 2}, b"\1\2", DONE, OVER),
    ],
    ids=str,
)
def test_odd_messages(frames: tuple[Any, ...]) -> None:
    with pytest.raises(UnexpectedAnswer):
        streamed(*frames)


def test_a_speech_that_comes_as_one_chunk() -> None:
    """Longer than 22 s of PCM, where websockets would stop by itself."""
    pcm = bytes(3 << 20)
    assert streamed(START, pcm, DONE, OVER) == pcm


def test_a_frame_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "_MAX_FRAME", 1 << 16)
    with pytest.raises(UnexpectedAnswer, match=r"(?i)bytes|too big|size"):
        streamed(START, bytes(1 << 17), DONE, OVER)


# ---- files and the sound card ------------------------------------------------------


@pytest.mark.parametrize(
    "odd", [{"sample_rate": 0}, {"sample_rate": 2**32}, {"channels": 0}, {"sample_width": 0}]
)
def test_a_format_that_no_file_could_have(odd: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"expected {next(iter(odd))} from 1"):
        AudioFormat(**{"name": "pcm", "sample_rate": 24_000, **odd})  # type: ignore[arg-type]


def test_a_wav_is_closed_once(tmp_path: Path) -> None:
    writer = WavWriter(tmp_path / "a.wav", PCM)
    writer.write(SHORT)
    with pytest.raises(UsageError, match="whole samples"):
        writer.write(b"\1")
    writer.close()
    whole = (tmp_path / "a.wav").read_bytes()
    writer.close()
    with pytest.raises(UsageError, match="closed"):
        writer.write(SHORT)
    assert whole == (tmp_path / "a.wav").read_bytes()
    assert whole.endswith(SHORT)


def test_a_wav_whose_header_cannot_be_written_is_not_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    really = Path.open

    def open_full(self: Path, *arguments: Any) -> Any:
        opened.append(really(self, *arguments))
        return opened[-1]

    def fail(*_: object) -> bytes:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "open", open_full)
    monkeypatch.setattr("kazeia_client.wav.wav_header", fail)
    with pytest.raises(OSError, match="no space"):
        WavWriter(tmp_path / "a.wav", PCM)
    assert [file.closed for file in opened] == [True]
