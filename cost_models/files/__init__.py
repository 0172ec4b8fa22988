"""Reading what users name or write (files, catalogue names, amounts) into specs; and writing files."""
