"""The verbs: each module holds its options, its function of the Python API, and its command."""
