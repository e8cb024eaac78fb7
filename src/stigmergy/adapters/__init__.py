"""One technology per file, each behind a port."""
