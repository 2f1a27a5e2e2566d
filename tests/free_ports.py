"""Ports for servers that are given theirs on the command line."""

from __future__ import annotations

import random
import socket

_RANGE = range(20_000, 32_000)
"""Below those that Linux gives to connections, and to servers that ask for any."""


def free_port() -> int:
    """Return a port without a listener; the system gives it to no other process meanwhile."""
    choice = random.SystemRandom()
    while True:
        port = choice.choice(_RANGE)
        with socket.socket() as server:
            try:
                server.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
