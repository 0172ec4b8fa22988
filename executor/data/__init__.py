"""Training data: token folders, made from text once and read in an order that follows from seed and step, and
clicks.
"""
