"""Token folders: made from text once, memory-mapped by every rank, read in an order that follows from seed and step."""
