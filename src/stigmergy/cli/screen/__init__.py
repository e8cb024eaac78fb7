"""The live view of a node: what is asked of it, what a frame of it shows, and the terminal that shows it."""
