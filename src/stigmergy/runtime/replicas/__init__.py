"""Joins the shared fields of a running host with those of other nodes: anti-entropy on a mesh, a clock and a disk."""
