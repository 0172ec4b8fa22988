"""`plan` of a transformer: questions, and the answers with their text and record."""
