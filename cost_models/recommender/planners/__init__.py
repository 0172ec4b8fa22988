"""What other planners charge for an option, as rows of the same form as our prices."""
