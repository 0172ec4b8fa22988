"""Explanations of a plan, of the effect of a changed question, and of differences between plans."""
