"""Calibration: constants of a hardware profile from measurements and runs, with residuals."""
