"""HTML pages: chapters of text, tables and pictures in one self-contained file."""
