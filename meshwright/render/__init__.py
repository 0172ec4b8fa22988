"""Answers as text: tables that fit 80 columns, and sentences."""
