"""A registration's model in tritonserver: loads, unloads and reloads the model, and watches its proxies.

Belongs here: the requests of one registration to tritonserver. May import: workers and what is below them; nothing
else of models.
"""
