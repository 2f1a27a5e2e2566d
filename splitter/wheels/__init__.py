"""The archive format of wheels; no GPUs in it."""
