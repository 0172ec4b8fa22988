"""Transformers at the front door: their questions read, their plans answered for."""
