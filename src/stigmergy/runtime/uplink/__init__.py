"""A device's own journal sent on to a gateway: `sender` and its `lane`s on the device, `collector` at the gateway."""
