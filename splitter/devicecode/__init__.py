"""What can be done with device code."""
