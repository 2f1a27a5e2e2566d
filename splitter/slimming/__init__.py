"""The same file or wheel without the device code that nobody here needs."""
