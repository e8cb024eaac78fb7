"""A whole fleet in one run of virtual time: machines, links, faults, and the world around them."""
