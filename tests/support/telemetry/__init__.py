"""Receivers of what a daemon tells: OpenTelemetry's protocol."""
