"""Fakes for the operator's tests: a cluster in memory that carries out plans."""
