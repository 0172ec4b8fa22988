"""Turn answers into text: sentences, and tables that fit 80 columns."""
