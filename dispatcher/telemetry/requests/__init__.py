"""Requests one by one: the access logs, the slowest and the last failed requests of each model.

Made of the records that workers write into their gauges.
It imports what stands below it: models, workers, base, settings.
"""
