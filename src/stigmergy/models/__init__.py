"""Models on the device: bundles, the runtimes that run them, and what explains their answers."""
