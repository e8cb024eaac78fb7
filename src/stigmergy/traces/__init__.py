"""Spans made from the log, as OpenTelemetry has them, and their way to a collector."""
