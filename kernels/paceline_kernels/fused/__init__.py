"""Triton kernels and their launchers; nothing here is imported before impl "triton" is named."""
