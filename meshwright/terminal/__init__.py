"""What a person sees in a terminal: answers, notes, errors and progress."""
