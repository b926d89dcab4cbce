"""nano: a model of two million weights that reads and writes small Python programs, and how it was made."""
