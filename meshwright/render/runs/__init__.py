"""Runs and what is learnt from them, as text: measured beside predicted, fitted profiles, accuracy."""
