"""One layout and many: the degrees and switches of a layout, its notation, and its columns."""
