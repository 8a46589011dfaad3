"""Preparation for tritonserver's start: its binaries, the proxy, the proxy's Python, the cache.

Belongs here: finding, downloading, compiling, unpacking. May import: base, settings.
"""
