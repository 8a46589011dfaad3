"""The connection on which a worker asks its proxies to call other models: messages, chains, both ends, memory.

Belongs here: what worker and proxy say to each other about calls; msgspec and the standard library only.
"""
