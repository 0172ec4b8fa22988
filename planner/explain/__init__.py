"""Explanations of a plan, of the effect of changes of its question, and of its differences from other
plans."""
