"""A graph of commands, a job pool and memory limits: a small ninja."""
