"""All counters and measurements of the daemon in one snapshot, used by `status`, `top`, the dashboard and /metrics.

Values are read from the workers' stats pages, from the registry and from /proc, without asking any process.
May import: models, workers, server, control, runtime, settings.
"""
