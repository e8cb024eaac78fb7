"""What commands print and where they find things: output, exit codes, places, terminal frames."""
