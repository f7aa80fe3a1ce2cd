"""`kazeia bench`: what the machine can do, and what a model does on it, as a table and as JSON."""

from __future__ import annotations

from kazeia_engine.tools.bench.figures import Settings, bench, bench_synthetic

__all__ = ["Settings", "bench", "bench_synthetic"]
