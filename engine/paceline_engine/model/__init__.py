"""Torch modules and weights of the model families."""
