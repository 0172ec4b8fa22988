"""Examines every device and link before a job, for devices slower than the others, or than the plan assumes."""
