"""C++ kernels for the CPU, compiled once per kind of CPU."""
