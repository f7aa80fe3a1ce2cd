"""The speech protocol: `POST /synthesize` and its WebSocket."""
