"""Uncertainty of a calibrated profile: how far its predictions are off, and which layouts its runs cover."""
