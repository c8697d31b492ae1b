"""Proposers of draft tokens."""
