"""Training data: token folders, made once and read in an order that follows from seed and step, and clicks."""
