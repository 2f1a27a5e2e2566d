"""Bytes in, facts out; never writes, never runs a program."""
