"""Models in repositories: reads their folders and routes them to tritonserver or to workers.

Belongs here: folders, versions, loading and unloading by name. May import: models and what is below them.
"""
