"""DeepSpeed: its JSON."""
