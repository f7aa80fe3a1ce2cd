"""Home Assistant's own Wyoming integration and Assist pipeline; runs in its environment.

    python home_assistant_run.py PORT FOLDER < orders.json

Adds the integration for 127.0.0.1:PORT by its config flow, in a Home Assistant whose files lie in
FOLDER, then carries out the orders, and prints a JSON object with what came of them:

- {"do": "speak", "text": ..., "language"?, "voice"?}: text-to-speech of a complete text
- {"do": "stream", "pieces": [...], "last": ...}: of a text that is written meanwhile; the last
  piece waits until the sound of those before it was heard
- {"do": "assist", "pieces": [...], ...}: an Assist pipeline whose conversation agent writes the
  pieces

Sound is WAV in base64, what a player of Home Assistant is given.
"""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncGenerator
from typing import Any

from homeassistant import bootstrap, config_entries, core, loader
from homeassistant.components import conversation, tts
from homeassistant.components.assist_pipeline.pipeline import (
    KEY_ASSIST_PIPELINE,
    PipelineEvent,
    PipelineInput,
    PipelineRun,
    PipelineStage,
)
from homeassistant.core_config import async_process_ha_core_config
from homeassistant.helpers.chat_session import async_get_chat_session
from homeassistant.setup import async_setup_component

WAV = {"preferred_format": "wav"}  # else it converts with FFmpeg


async def start(folder: str) -> core.HomeAssistant:
    hass = core.HomeAssistant(folder)
    hass.config.skip_pip = True
    hass.config_entries = config_entries.ConfigEntries(hass, {})
    loader.async_setup(hass)
    await bootstrap.async_load_base_functionality(hass)
    await async_process_ha_core_config(hass, {})
    for component in ("homeassistant", "conversation", "tts", "assist_pipeline"):
        assert await async_setup_component(hass, component, {}), component
    await hass.data[conversation.DATA_COMPONENT].async_add_entities([Agent()])
    return hass


async def add(hass: core.HomeAssistant, **data: Any) -> dict[str, Any]:
    """The integration as a user adds it; what the form says, and the entity that appears."""
    flow = hass.config_entries.flow
    form = await flow.async_init("wyoming", context={"source": config_entries.SOURCE_USER})
    fields = [str(key) for key in form["data_schema"].schema]
    result = await flow.async_configure(form["flow_id"], data)
    await hass.async_block_till_done()
    if result["type"] != "create_entry":
        return {"fields": fields, "errors": result.get("errors")}
    [entity] = hass.states.async_entity_ids("tts")
    engine = tts.get_engine_instance(hass, entity)
    return {
        "fields": fields,
        "title": result["title"],
        "entity": entity,
        "streams_text": engine.async_supports_streaming_input(),
        "languages": engine.supported_languages,
        "voices": {
            language: [voice.voice_id for voice in engine.async_get_supported_voices(language)]
            for language in engine.supported_languages
        },
    }


async def speak(hass: core.HomeAssistant, entity: str, order: dict[str, Any]) -> dict[str, Any]:
    options = WAV | ({"voice": order["voice"]} if "voice" in order else {})
    stream = tts.async_create_stream(hass, entity, order.get("language"), options)
    heard = asyncio.Event()
    sound = b""
    early = 0  # bytes that came before the last piece was written

    async def pieces() -> AsyncGenerator[str]:
        nonlocal early
        for piece in order["pieces"]:
            yield piece
        if "last" in order:
            await asyncio.wait_for(heard.wait(), 20)
            early = len(sound)
            yield order["last"]

    if "text" in order:
        stream.async_set_message(order["text"])
    else:
        stream.async_set_message_stream(pieces())
    async for chunk in stream.async_stream_result():
        sound += chunk
        if len(sound) > 1000:
            heard.set()
    return {"sound": base64.b64encode(sound).decode(), "early": early}


class Agent(conversation.ConversationEntity):
    """Answers with given pieces, one by one, as agents on language models do."""

    _attr_name = "test"
    _attr_supports_streaming = True
    supported_languages = "*"
    pieces: list[str]

    async def _async_handle_message(
        self, user_input: conversation.ConversationInput, chat_log: conversation.ChatLog
    ) -> conversation.ConversationResult:
        async def deltas() -> AsyncGenerator[dict[str, Any]]:
            yield {"role": "assistant"}
            for piece in self.pieces:
                yield {"content": piece}

        async for _ in chat_log.async_add_delta_content_stream(self.entity_id, deltas()):
            pass
        return conversation.async_get_result_from_chat_log(user_input, chat_log)


async def assist(hass: core.HomeAssistant, entity: str, order: dict[str, Any]) -> dict[str, Any]:
    agent = hass.data[conversation.DATA_COMPONENT].get_entity("conversation.test")
    assert isinstance(agent, Agent)
    agent.pieces = order["pieces"]
    store = hass.data[KEY_ASSIST_PIPELINE].pipeline_store
    pipeline = await store.async_create_item(
        {
            "name": "test", "language": "en", "conversation_engine": agent.entity_id,
            "conversation_language": "en", "stt_engine": None, "stt_language": None,
            "tts_engine": entity, "tts_language": order["language"], "tts_voice": order["voice"],
            "wake_word_entity": None, "wake_word_id": None, "prefer_local_intents": False,
        }
    )  # fmt: skip
    events: list[PipelineEvent] = []
    with async_get_chat_session(hass, None) as session:
        run = PipelineRun(
            hass, context=core.Context(), pipeline=pipeline, start_stage=PipelineStage.INTENT,
            end_stage=PipelineStage.TTS, event_callback=events.append, tts_audio_output=WAV,
        )  # fmt: skip
        given = PipelineInput(run=run, session=session, intent_input="What time is it?")
        await given.validate()
        await given.execute()
    outputs = [e.data["tts_output"] for e in events if "tts_output" in (e.data or {})]
    stream = tts.async_get_stream(hass, outputs[-1]["token"])
    sound = b"".join([chunk async for chunk in stream.async_stream_result()])
    streamed = any((e.data or {}).get("tts_start_streaming") for e in events)
    errors = [e.data for e in events if e.type == "error"]
    return {"sound": base64.b64encode(sound).decode(), "streamed": streamed, "errors": errors}


async def main(port: int, folder: str) -> None:
    hass = await start(folder)
    results: dict[str, Any] = {"added": await add(hass, host="127.0.0.1", port=port), "done": []}
    entity = results["added"].get("entity")
    for order in json.load(sys.stdin):
        carry_out = assist if order["do"] == "assist" else speak
        try:
            results["done"].append(await carry_out(hass, entity, order))
        except Exception as error:
            results["done"].append({"error": f"{type(error).__name__}: {error}"})
    print(json.dumps(results))
    await hass.async_stop(force=True)


asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
