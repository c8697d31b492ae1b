"""A step plan becomes tensors, tensors become tokens."""
