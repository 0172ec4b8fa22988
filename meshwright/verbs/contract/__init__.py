"""What verbs and families agree on: commands, answers, and the protocol of a family."""
