"""`pytriton-daemon doctor`: checks whether a daemon will work on this machine, and suggests fixes.

Belongs here: checks that need no running daemon. May import: `install`, `settings`, and pytriton._protocol.
"""
