"""Metrics: all counters and measurements of the daemon in a snapshot, for `top`, the dashboard, /metrics and OTLP.

They are read from the workers' statistics pages, from the registry and from /proc, without requests to any worker. May
import: models, workers, server, control, runtime, settings.
"""
