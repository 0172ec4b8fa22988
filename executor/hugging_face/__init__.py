"""Weights in Hugging Face folders: read by each rank for itself, written by all ranks together, named as the family
does.
"""
