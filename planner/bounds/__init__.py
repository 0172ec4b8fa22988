"""Lower bounds on step times, for many layouts at once."""
