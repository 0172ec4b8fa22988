"""Serving recommenders: lookups are answered from the cache, host memory and drive that a plan fills."""
