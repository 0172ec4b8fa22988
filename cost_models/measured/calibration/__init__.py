"""Calibration: measurements and runs → the constants of a hardware profile, with residuals."""
