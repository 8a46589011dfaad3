"""Individual requests: access logs, and each model's slowest and most recent failed requests.

Their source is the records that workers write to their statistics pages. May import: models, workers, events, runtime,
settings.
"""
