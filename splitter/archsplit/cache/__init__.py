"""A content-addressed store with remotes; knows no compiler."""
