"""Hugging Face accelerate: its YAML."""
