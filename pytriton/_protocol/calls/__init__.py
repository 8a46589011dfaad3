"""The connection on which a worker asks its proxies to call other models: messages, chains, both ends, memory.

Holds what worker and proxy send each other about calls. Imports msgspec and the standard library only.
"""
