"""Ranks that fail, hang or are told to stop, and what is said of it."""
