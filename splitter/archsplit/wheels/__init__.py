"""The wheel format: reading, writing, rewriting, metadata."""
