"""The transport of batches: the lane, its messages, arenas, tensors, a worker's stats page.

Holds the data path between a proxy and a worker. Imports numpy, msgspec and the standard library only.
"""
