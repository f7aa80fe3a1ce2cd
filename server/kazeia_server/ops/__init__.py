"""Operations: keys, limits, request ids, logs, metrics."""
