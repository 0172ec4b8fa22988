"""Replacements of matrices for fine-tuning: adapters, fewer bits, frozen parts."""
