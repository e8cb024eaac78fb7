"""Completion on the command line: what may come next, asked by a few lines of script in each shell."""
