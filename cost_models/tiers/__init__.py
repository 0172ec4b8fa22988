"""Tiers of memory below the device's, and the channels to them: what offloaded blocks fill and what they wait for."""
