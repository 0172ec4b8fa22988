"""Embeddings while serving: some rows of a table on the device, all of them in host memory."""
