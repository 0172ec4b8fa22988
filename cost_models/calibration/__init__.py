"""Measurements and published runs → the constants of a hardware profile, with residuals."""
