"""Faults of ranks: signs of life, failures, hangs, requests to stop, wrong results, and their errors."""
