"""Deciding by evidence, measured on labelled rows: `python -m benchmarks.evidence --data DIR`."""
