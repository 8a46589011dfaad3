"""`pytriton-daemon doctor`: looks whether a daemon works on this machine, and says what mends it.

Belongs here: checks that run before there is a daemon. May import: install and what is below it.
"""
