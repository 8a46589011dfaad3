"""A registration's model in tritonserver: loading, unloading, reloading, and its proxies.

Belongs here: what one registration requests from tritonserver. May import: workers and what is below them; nothing
else of models.
"""
