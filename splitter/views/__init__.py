"""What a person, or a program, gets to see of an inventory."""
