"""Installation of what tritonserver needs to start: its binaries, the proxy, the proxy's Python, the cache.

Belongs here: finding, downloading, compiling, unpacking. May import: `settings` and pytriton._protocol.
"""
