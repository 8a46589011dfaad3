"""A worker's calls to other models: the caller's side, and its connection with a proxy.

Belongs here: what `pytriton.infer` and its like need in a worker.
"""
