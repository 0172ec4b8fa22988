"""Validation: predictions compared with measured runs."""
