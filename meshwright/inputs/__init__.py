"""What a user gives, read: a question, what its answer should be best at, and what it must keep to."""
