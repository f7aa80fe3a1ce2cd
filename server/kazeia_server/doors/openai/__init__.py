"""The OpenAI speech API."""
