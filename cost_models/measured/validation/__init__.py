"""Validation: predictions beside measured runs, and how far off they are."""
