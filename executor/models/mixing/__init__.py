"""What mixes the tokens of a sequence: attention with its kernels and positions, recurrences, pieces of a sequence."""
