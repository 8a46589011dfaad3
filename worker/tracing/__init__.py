"""OpenTelemetry in a worker: the spans of a batch, and where they are sent.

Belongs here: what only traced batches need.
"""
