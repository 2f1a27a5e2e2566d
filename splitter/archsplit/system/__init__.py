"""Processes, files, environment, units: all effects on the machine."""
