"""What `stigmergy new` writes: the files in `template/`, each with a few names filled in."""
