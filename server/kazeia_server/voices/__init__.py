"""What speaks: Qwen3-TTS models through the engine, or the built-in English voice."""
