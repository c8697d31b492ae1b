"""Pure decisions: requests, blocks, schedule. No clock, no randomness, no torch."""
