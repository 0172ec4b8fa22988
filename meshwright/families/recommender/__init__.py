"""Recommenders at the front door: their questions read, their plans shown and answered for."""
