"""What a step of nvcc, or a whole command line for it, is known by in the cache."""
