"""Publishing to a package index, and a static index in a folder."""
