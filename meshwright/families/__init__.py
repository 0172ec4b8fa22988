"""Families of models behind the verbs, a folder each."""
