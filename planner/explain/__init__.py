"""Explanations of a plan, of changes of its question, and of its differences from other plans."""
