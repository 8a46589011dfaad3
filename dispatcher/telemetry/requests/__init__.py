"""Individual requests: access logs, and the slowest and the last failed requests of each model.

Their source is the records that workers write to their statistics pages. May import: models, workers, events, runtime,
settings.
"""
