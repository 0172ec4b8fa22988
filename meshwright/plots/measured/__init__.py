"""Pictures of what was measured beside what was predicted."""
