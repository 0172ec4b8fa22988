"""Mixers of a sequence's tokens: attention with its kernels and positions, recurrences, parts of a sequence."""
