"""The daemon's settings: declared once, read from file, environment and flags, checked, shown, reloaded.

Belongs here: the meaning of settings, and the sources of their values. May import: nothing of the dispatcher's.
"""
