"""Measured runs: their data, comparison with predictions (validation), and constants fitted to them
(calibration)."""
