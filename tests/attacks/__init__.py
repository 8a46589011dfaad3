"""Hostile clients by the thousand against a daemon with the native frontend, and how that felt for others.

`scripts/tools/attack-frontend` runs it. Compare `fuzz`, whose messages are damaged at random, and `chaos`, which breaks
processes.
"""
