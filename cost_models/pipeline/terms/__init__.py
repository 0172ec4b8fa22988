"""Time and memory coefficients of blocks, passes and updates, from which stages are priced."""
