"""The daemon's settings: declarations, validation, sources (file, environment, flags), output, reload.

Belongs here: the meaning of settings, and the sources of their values. May import: pytriton._protocol.
"""
