"""A package index of the wheels of a resolution, edited for some GPUs."""
