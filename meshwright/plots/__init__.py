"""Pictures: for each kind, functions that turn an answer or a file into a data frame and a matplotlib `Figure` of
it."""
