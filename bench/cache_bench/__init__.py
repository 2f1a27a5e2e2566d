"""What the bench of the compile cache is made of."""
