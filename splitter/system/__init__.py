"""Effects, each behind a small interface that tests can replace."""
