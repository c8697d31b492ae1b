"""The command line: serve, run, fetch, bench."""
