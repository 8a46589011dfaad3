"""Models that lie in repositories: their folders are read, and routed to tritonserver or to workers.

Belongs here: folders, versions, loading and unloading by name. May import: models and what is below them.
"""
