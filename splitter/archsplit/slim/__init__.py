"""Device code removed from files, wheels and installed environments."""
