"""A registration's model in tritonserver: loading, unloading, reloading, and its proxies.

Belongs here: the requests of one registration to tritonserver. May import: workers and what is below them; nothing
else of models.
"""
