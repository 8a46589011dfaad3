"""Connection on which a worker asks its proxies to call other models: its messages, both ends, and their memory.

Imports only msgspec and the standard library.
"""
