"""Weights in folders of Hugging Face: read by every rank for itself, written by all together, names by family."""
