"""A registration's model in tritonserver: loaded, taken out, loaded anew, and its proxies.

Belongs here: what one registration asks of tritonserver. May import: workers and what is below them; nothing else of
models.
"""
