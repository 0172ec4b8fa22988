"""What is decided by integer programming; the only place that knows the solver."""
