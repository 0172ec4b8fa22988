"""A cluster file read from a machine: its driver, kernel and scheduler."""
