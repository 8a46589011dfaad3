"""Single requests: access logs, and the slowest and last failed requests of each model.

Based on the records that workers write to their stats pages.
May import: models, workers, events, runtime, settings.
"""
