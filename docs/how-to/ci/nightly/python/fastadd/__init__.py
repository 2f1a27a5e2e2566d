"""Adds."""
