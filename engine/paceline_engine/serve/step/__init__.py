"""The step loop, its process and the way to speak to it."""
