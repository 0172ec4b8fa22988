"""The explorer: a page on this machine that answers a question again whenever one of its controls is turned."""
