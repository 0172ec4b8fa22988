"""What training runs say: of the predictions (validation) and of the constants (calibration)."""
