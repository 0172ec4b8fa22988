"""The verbs as functions: the only implementation, of which the command line prints the answers."""
