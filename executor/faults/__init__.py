"""Signs, failures, hangs and stops of ranks, and their errors."""
