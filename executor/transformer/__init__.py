"""Training transformers: checks, steps, diagnosis, report, and the contents of checkpoints."""
