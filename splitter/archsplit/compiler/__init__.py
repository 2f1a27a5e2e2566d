"""The nvcc wrapper, and the compile cache that knows about nvcc."""
