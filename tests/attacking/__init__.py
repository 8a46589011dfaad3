"""Hostile clients by the thousand against a daemon with the native front, and how that felt for others.

`scripts/attack-front` runs it. Compare `fuzzing`, whose messages are damaged at random, and `chaos`, which breaks
processes.
"""
