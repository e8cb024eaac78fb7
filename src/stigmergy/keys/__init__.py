"""Keys of a node: Ed25519 signatures and the files that hold keys."""
