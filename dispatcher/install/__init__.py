"""What has to be on the machine before tritonserver can start: its binaries, the proxy, a Python for it, the cache.

Belongs here: finding, fetching, compiling, unpacking. May import: base, settings.
"""
