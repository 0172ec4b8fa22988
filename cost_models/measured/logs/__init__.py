"""Logs of other trainers: iteration lines, memory and settings, read as streams of any length."""
