"""A fat wheel or library to a core and device packs, and back."""
