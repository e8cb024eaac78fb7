"""Rigs of our own tests, proofs and benchmarks: trials on failing disks, models to search, processes to kill."""
