"""The ElevenLabs text-to-speech API."""
