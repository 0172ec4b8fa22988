"""Failures, hangs and stops of ranks, and their errors."""
