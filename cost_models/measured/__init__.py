"""Measured runs: their data, predictions beside them (validation), constants fitted to them (calibration)."""
