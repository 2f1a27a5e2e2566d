"""Recipe file: sources, targets, names and policies."""
