"""Who is in the fleet when no broker says so: SWIM, and the meshes that carry its datagrams."""
