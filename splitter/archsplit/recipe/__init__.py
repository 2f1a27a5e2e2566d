"""The recipe file: sources, targets, names and policies."""
