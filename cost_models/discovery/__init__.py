"""What a machine says of itself (its driver, kernel and scheduler), read into a cluster file."""
