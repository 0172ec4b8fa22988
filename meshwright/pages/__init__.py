"""Pages of HTML: chapters of text, tables and pictures in one file that needs nothing else."""
