"""The only part of the operator that talks to anybody: API server, engines, clocks, files."""
