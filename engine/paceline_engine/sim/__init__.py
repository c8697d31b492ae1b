"""The scheduler that serves, under a cost model."""
