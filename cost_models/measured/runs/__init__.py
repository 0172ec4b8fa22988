"""Published runs: rows of tables, each read as a question with a layout."""
