"""Training of draft heads on a model's own outputs."""
