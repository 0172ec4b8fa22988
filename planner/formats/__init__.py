"""Formats of other trainers: plans are exported to their files, and runs are imported from their files and
commands."""
