"""The model of a registration in tritonserver: loads, unloads, reloads, and its proxies.

Belongs here: the requests of one registration to tritonserver. May import: workers and what is below them; nothing
else of models.
"""
