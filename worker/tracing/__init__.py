"""OpenTelemetry in a worker: the spans of a batch, and their export.

Holds what only traced batches need.
"""
