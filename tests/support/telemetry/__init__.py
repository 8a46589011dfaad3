"""Receivers of OpenTelemetry's protocol."""
