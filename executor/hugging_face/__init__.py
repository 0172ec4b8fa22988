"""Weights in Hugging Face folders: read by each rank for itself, written by all ranks together."""
