"""The verbs: a module for each holds its options, its function of the Python API, and its command."""
