"""Offload of blocks' states, weights or activations to host memory or to drives."""
