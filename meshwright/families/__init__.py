"""Families of models (transformers, recommenders), each a folder with the functions that answer the verbs."""
