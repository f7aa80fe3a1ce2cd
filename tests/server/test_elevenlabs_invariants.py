"""What always holds of the ElevenLabs multi-context protocol, whatever comes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kazeia_server.doors.actions import (
    Action,
    Begin,
    Close,
    Drop,
    End,
    Flush,
    Push,
    SendMessage,
)
from kazeia_server.doors.elevenlabs.protocol import MAX_CONTEXTS, Limits, MultiContext
from kazeia_server.errors import EngineFailure
from kazeia_server.synthesis.request import SynthesisRequest
from kazeia_server.voices.backend import SynthesisStats

STATS = SynthesisStats(ended="eos", audio_s=0.1, frames=1, n_chunks=1, ttfb_s=0.1, rtf=0.4)
PCM = b"\1\0" * 6
LIMITS = Limits(max_message_bytes=2000, max_text_chars=100, inactivity_s=20.0, patience_s=50.0)


def send(protocol: MultiContext, now: float, **fields: Any) -> list[Action]:
    return protocol.receive_text(json.dumps(fields), now)


COMMANDS = st.lists(
    st.tuples(
        st.sampled_from(
            ["text", "blank", "flush", "close", "keep", "audio", "end", "fail", "tick", "leave"]
        ),
        st.integers(0, 6),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(COMMANDS)
def test_what_always_holds(commands: list[tuple[str, int]]) -> None:
    """No audio outside a context; one isFinal for each; utterances begin once and end once."""
    protocol = MultiContext(LIMITS, now=0.0, order=lambda: SynthesisRequest(text=""))
    begun: dict[int, str] = {}
    running: set[int] = set()
    heard_of: dict[str, int] = {}  # contexts opened and not final, by name
    closed = False
    now = 0.0
    last_name = ""

    def see(actions: list[Action]) -> None:
        nonlocal closed
        for action in actions:
            assert not closed, "an action after the close"
            if isinstance(action, Begin):
                assert action.index not in begun
                assert action.after is None or action.after in begun
                begun[action.index] = last_name
                running.add(action.index)
            elif isinstance(action, Drop):
                running.remove(action.index)
            elif isinstance(action, Push | Flush | End):
                assert action.index in running
            elif isinstance(action, Close):
                closed = True
            elif isinstance(action, SendMessage) and action.message.get("isFinal"):
                heard_of[action.message["contextId"]] -= 1
                assert heard_of[action.message["contextId"]] >= 0

    for command, n in commands:
        last_name = f"c{n}"
        now += 0.5
        if command in ("text", "blank"):
            known = last_name in protocol._open
            n_open = len(protocol._open)
            text = "Hello. " if command == "text" else " "
            actions = send(protocol, now, text=text, context_id=last_name)
            if not known and not closed and n_open < MAX_CONTEXTS and last_name in protocol._open:
                heard_of[last_name] = heard_of.get(last_name, 0) + 1
            see(actions)
        elif command == "flush":
            see(send(protocol, now, context_id=last_name, flush=True))
        elif command == "close":
            see(send(protocol, now, context_id=last_name, close_context=True))
        elif command == "keep":
            see(send(protocol, now, text="", context_id=last_name))
        elif command == "tick":
            now += n
            see(protocol.tick(now))
        elif command == "leave" and n == 0:
            see(protocol.leave())
        elif command == "audio":
            sent = protocol.audio(n, PCM)
            assert bool(sent) == (n in running and not closed)
            see(sent)
        elif command in ("end", "fail"):
            was_running = n in running
            running.discard(n)
            actions = (
                protocol.ended(n, STATS, now)
                if command == "end"
                else protocol.failed(n, EngineFailure("broke"), now)
            )
            assert was_running or not actions
            see(actions)
