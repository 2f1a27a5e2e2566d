"""Which targets are worth their bytes, for the GPUs that users have; pure."""
