"""The connection over which a worker asks its proxies to call other models: messages, both ends, shared memory.

Imports only msgspec and the standard library.
"""
