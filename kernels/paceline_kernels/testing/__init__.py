"""What tests of the kernels and of what stands on them share."""
