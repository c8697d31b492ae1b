"""Fakes that behave: a clock, a runner, tiny models."""
