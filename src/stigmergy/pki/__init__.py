"""Certificates: a private authority of a fleet, and the identities that it gives to nodes, devices, servers, people."""
