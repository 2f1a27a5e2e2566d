"""A small ninja: files, commands, digests; no CUDA in it."""
