"""Plans, estimates and what is said about them, as text."""
