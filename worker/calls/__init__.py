"""A worker's calls to other models: the caller's side, and its connections to proxies.

Holds what `pytriton.infer` and related functions need in a worker.
"""
