"""A release on a package index: planned, uploaded, proven, and never a core without its plugins."""
