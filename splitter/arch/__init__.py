"""What a GPU is, what code was built for, and which runs on which; pure."""
