"""Installs what tritonserver needs to start: its binaries, the proxy, and the proxy's Python. Manages the cache.

Belongs here: finding, downloading, compiling, unpacking. May import: `settings` and pytriton._protocol.
"""
