"""What each verb does: ask, call, show. One module per verb, imported when it is called."""
