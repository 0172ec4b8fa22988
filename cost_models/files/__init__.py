"""Files and names that users give, read into specs; and the catalogue."""
