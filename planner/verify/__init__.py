"""Verification of plan files: prices and proof are computed again."""
