"""The legal layouts of a question, within what the user fixed or forbade; and why there are none."""
