"""What training runs say of predictions (validation) and of constants (calibration)."""
