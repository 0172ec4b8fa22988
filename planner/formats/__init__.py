"""Formats of other trainers: files that plans are written as, and that runs are read from."""
