"""The data path between a proxy and a worker: lanes, their messages, arenas, tensors, and the worker's stats page.

Imports only numpy, msgspec and the standard library.
"""
