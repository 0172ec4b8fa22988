"""Pictures: a data frame in, a matplotlib `Figure` out, a function for each kind; `drawing` joins figure and data."""
