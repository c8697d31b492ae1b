"""Benchmarks: the scheduler alone, and any OpenAI-compatible server under load."""
