"""What a config says of ties, beside what a file stores."""
