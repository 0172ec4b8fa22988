"""Terminal: print answers, notes, errors and progress."""
