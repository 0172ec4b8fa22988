"""Looks at every device and link before a job: which one is slower than the others, or than the plan assumes."""
