"""The transport of batches: the lane, its messages, arenas, tensors, a worker's gauge.

Belongs here: the data path between a proxy and a worker; numpy, msgspec and the standard library only.
"""
