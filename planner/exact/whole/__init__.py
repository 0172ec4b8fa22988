"""The whole question as one integer program: a second proof that needs neither the search nor its labels."""
