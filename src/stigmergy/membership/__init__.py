"""Membership without a broker: SWIM, and the meshes that carry its datagrams."""
