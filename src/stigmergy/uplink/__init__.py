"""A device's log sent on to a gateway: rules and messages (pure), the sender, the collector."""
