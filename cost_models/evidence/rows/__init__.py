"""Published runs, row by row, each read as a question with a layout."""
