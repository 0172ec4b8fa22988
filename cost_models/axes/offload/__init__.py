"""Offload: blocks whose states, weights or activations live in host memory, and how many come back at a time."""
