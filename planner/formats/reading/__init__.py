"""Readers of bash, of Python and of nested settings, which execute nothing."""
