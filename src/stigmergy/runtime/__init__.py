"""The async shell around the core: takes inputs in, makes commits durable, releases effects. It names no adapter."""
