"""Legal layouts of a question within the user's restrictions, and the reasons if there are none."""
