"""Is a plan file true: its prices and its proof, done again."""
