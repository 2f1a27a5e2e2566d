"""Compute capabilities, targets, and the GPUs that have them."""
