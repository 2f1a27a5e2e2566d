"""How a finished fat library or wheel is split into a core and its device packs."""
