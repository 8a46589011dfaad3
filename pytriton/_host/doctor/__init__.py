"""`pytriton-daemon doctor`: checks whether a daemon works on this machine, and suggests fixes.

Belongs here: checks that need no running daemon. May import: install and what is below it.
"""
