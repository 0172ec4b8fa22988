"""Terminal: answers, notes, errors and progress."""
