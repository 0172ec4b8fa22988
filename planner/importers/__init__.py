"""Commands and files of other trainers, read without running them: one reader a module."""
