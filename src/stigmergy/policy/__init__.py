"""Policies: rules in Rego that decide which inputs an agent gets to see. Signed, versioned, deny by default."""
