"""The Wyoming protocol."""
