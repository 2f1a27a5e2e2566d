"""``python -m archsplit``: the same as the command ``archsplit``."""

from archsplit.cli.main import entry_point

if __name__ == "__main__":
    entry_point()
