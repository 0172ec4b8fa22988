"""Training transformers: checks, steps, diagnosis, report, what checkpoints hold."""
